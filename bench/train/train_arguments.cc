#include "bench/train/train_arguments.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/presets.h"

namespace syncopate::bench {

const std::vector<std::string>& TrainCases() {
  static const auto* const cases =
      new std::vector<std::string>{"policy", "program", "logprobs", "memory", "offload", "save", "stage", "export"};
  return *cases;
}

void AddTrainOptions(CLI::App* app, TrainArguments* arguments) {
  app->add_option(
         "cases", arguments->cases,
         "policy: the trainer's whole step; program: forward, backward and update alone; logprobs: the pass "
         "for log-probabilities; memory: what is reserved over many steps of drawn lengths; offload: the "
         "whole step with parts of the state in host memory; save: what a step waits for a checkpoint, whose "
         "copy of the state to host memory a GPU makes beside the next step; stage: what a step loses beside "
         "the staging of the version before it; export: what steps lose beside an export of the model; nothing: "
         "the first three")
      ->check(CLI::IsMember(TrainCases()));
  app->add_option("--model", arguments->model, "Whose shape")
      ->check(CLI::IsMember(model::PresetNames()))
      ->capture_default_str();
  app->add_option("--layers", arguments->layers, "How many of its layers; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--vocabulary", arguments->vocabulary, "Tokens of its vocabulary; 0: as many as it has")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20))
      ->capture_default_str();
  app->add_option("--device", arguments->device, "Where: cpu, cuda:N, or auto: a GPU if there is one")
      ->capture_default_str();
  app->add_option("--ranks", arguments->ranks,
                  "Of the case policy: ranks that share it, with a GPU each from the first one on (or, with --device "
                  "cpu, a thread each)")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--tokens", arguments->tokens, "Packed tokens of a step, for each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--longest", arguments->longest, "Tokens of the longest sequence")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  app->add_flag("--ragged", arguments->ragged, "Lengths from a 16th of the longest to it, in place of the longest");
  app->add_flag("--float32-logits", arguments->float32_logits, "Logits in float32");
  app->add_option("--lora", arguments->lora_rank,
                  "Of policy and memory: rank of adapters on all projections, which alone are trained; 0: none")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  app->add_flag("--deterministic", arguments->deterministic,
                "Of policy, program and logprobs: each a second time with train.deterministic, to see what it costs");
  app->add_option("--reduce-dtype", arguments->reduce_dtype, "What ranks sum gradients in: train.reduce_dtype")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app->add_option("--recompute", arguments->recompute, "What backward computes again")
      ->check(CLI::IsMember({"none", "selective", "full"}))
      ->capture_default_str();
  app->add_option("--steps", arguments->steps, "Steps that are measured")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app->add_option("--warm-seconds", arguments->warm_seconds, "Of steps before them")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--memory-steps", arguments->memory_steps, "Steps of the case memory")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_option("--micro-batch-tokens", arguments->micro_batch_tokens,
                  "Tokens of a forward and backward in policy, memory and offload; 0: as many as --tokens")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_option("--empty-cache", arguments->empty_cache, "train.empty_cache_after_update in these")
      ->check(CLI::IsMember({"always", "on_pressure", "never"}))
      ->capture_default_str();
  app->add_option("--variant", arguments->variant, "Of the case offload those whose name has this; nothing: all");
  app->add_option("--allocator", arguments->allocator,
                  "Settings of libtorch's allocator, as PYTORCH_CUDA_ALLOC_CONF takes them");
  app->add_flag("--profile", arguments->profile,
                "Of policy on one rank: also list the time of each kernel of one more step, by libtorch's profiler");
  app->add_flag("--json", arguments->json, "Print one JSON object a line as each case ends");
}

// The command line and the program that links libtorch are two processes: all parsed arguments are passed on as words,
// so that defaults are in one place.
std::vector<std::string> ToWords(const TrainArguments& arguments) {
  std::vector<std::string> words = arguments.cases;
  auto add = [&words](const char* name, const auto& value) { words.insert(words.end(), {name, absl::StrCat(value)}); };
  add("--model", arguments.model);
  add("--layers", arguments.layers);
  add("--vocabulary", arguments.vocabulary);
  add("--device", arguments.device);
  add("--ranks", arguments.ranks);
  add("--tokens", arguments.tokens);
  add("--longest", arguments.longest);
  add("--reduce-dtype", arguments.reduce_dtype);
  add("--recompute", arguments.recompute);
  add("--steps", arguments.steps);
  add("--warm-seconds", arguments.warm_seconds);
  add("--memory-steps", arguments.memory_steps);
  add("--micro-batch-tokens", arguments.micro_batch_tokens);
  add("--lora", arguments.lora_rank);
  add("--empty-cache", arguments.empty_cache);
  if (!arguments.variant.empty()) add("--variant", arguments.variant);
  if (!arguments.allocator.empty()) add("--allocator", arguments.allocator);
  if (arguments.ragged) words.emplace_back("--ragged");
  if (arguments.float32_logits) words.emplace_back("--float32-logits");
  if (arguments.deterministic) words.emplace_back("--deterministic");
  if (arguments.profile) words.emplace_back("--profile");
  if (arguments.json) words.emplace_back("--json");
  return words;
}

absl::StatusOr<model::ModelConfig> GetShape(const TrainArguments& arguments) {
  SYNCOPATE_ASSIGN_OR_RETURN(model::ModelConfig shape, model::FindPreset(arguments.model));
  if (arguments.layers > shape.num_hidden_layers) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CASE",
                 absl::StrCat(arguments.model, " has ", shape.num_hidden_layers, " layers, not ", arguments.layers));
  }
  // A few layers of a large model have its kernels and its step time per layer, in less memory.
  if (arguments.layers > 0) shape.num_hidden_layers = arguments.layers;
  if (arguments.vocabulary > 0) shape.vocab_size = arguments.vocabulary;
  // The table of positions is no longer than the measured sequences.
  shape.max_position_embeddings = arguments.longest;
  if (arguments.lora_rank == 0) return shape;
  const bool trains_adapters = !arguments.cases.empty() && absl::c_all_of(arguments.cases, [](const std::string& name) {
    return name == "policy" || name == "memory";
  });
  if (!trains_adapters) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CASE",
                 "--lora is for the cases policy and memory: name them");
  }
  shape.lora = {.rank = arguments.lora_rank,
                .alpha = 2.0 * static_cast<double>(arguments.lora_rank),
                .projections = model::LoraConfig::AllProjections()};
  return shape;
}

}  // namespace syncopate::bench
