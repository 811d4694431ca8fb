#include "services/config/trainer_options.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "services/config/loss_options.h"
#include "services/config/rules.h"

namespace syncopate::config {
namespace {

trainer::AdamWOptions MakeOptimizerOptions(const v1::RunConfig& config) {
  const v1::TrainSection& train = config.train();
  trainer::AdamWOptions optimizer;
  optimizer.learning_rate = train.learning_rate();
  optimizer.beta1 = train.beta1();
  optimizer.beta2 = train.beta2();
  optimizer.eps = train.adam_eps();
  optimizer.weight_decay = train.weight_decay();
  optimizer.max_grad_norm = train.max_grad_norm();
  optimizer.max_grad_growth = train.max_grad_growth();
  optimizer.decay_all = train.weight_decay_on() == "all";
  optimizer.schedule = train.schedule() == "linear"   ? trainer::Schedule::kLinear
                       : train.schedule() == "cosine" ? trainer::Schedule::kCosine
                                                      : trainer::Schedule::kConstant;
  optimizer.warmup_updates = train.warmup_updates();
  if (train.sft_learning_rate() > 0) {
    optimizer.supervised_updates = train.sft_steps();
    optimizer.supervised_rate = train.sft_learning_rate();
  }
  // A schedule without a length ends with the run.
  optimizer.schedule_updates = train.schedule_updates() > 0
                                   ? train.schedule_updates()
                                   : std::max<int64_t>(MakeUpdates(config) - optimizer.supervised_updates, 1);
  optimizer.final_fraction = train.final_learning_rate_fraction();
  return optimizer;
}

trainer::Recompute ToRecompute(const v1::TrainSection& train) {
  return train.recompute() == "none"   ? trainer::Recompute::kNone
         : train.recompute() == "full" ? trainer::Recompute::kFull
                                       : trainer::Recompute::kSelective;
}

std::optional<DType> ToComputeDType(const v1::TrainSection& train) {
  // The type depends on the device, which is not known yet.
  if (train.compute_dtype() == "auto") return std::nullopt;
  return train.compute_dtype() == "bfloat16" ? DType::kBFloat16 : DType::kFloat32;
}

trainer::MemoryOptions MakeMemoryOptions(const v1::RunConfig& config) {
  const v1::TrainSection& train = config.train();
  trainer::MemoryOptions memory;
  memory.offload_params = train.offload_params();
  memory.offload_optimizer_for_logprob = train.offload_optimizer_for_logprob();
  memory.offload_reference = train.offload_reference();
  const std::string& rule = train.empty_cache_after_update();
  // The end of each turn empties the allocator in any case.
  memory.empty_cache = rule == "always"                              ? trainer::EmptyCache::kAlways
                       : rule == "never" || config.run().share_gpu() ? trainer::EmptyCache::kNever
                                                                     : trainer::EmptyCache::kOnPressure;
  return memory;
}

}  // namespace

trainer::TaskOptions MakeTaskOptions(const v1::RunConfig& config) {
  return {.name = config.data().task(),
          .length = config.data().length(),
          .alphabet = config.data().alphabet(),
          .seed = static_cast<uint64_t>(config.run().seed())};
}

std::string MakeAdapterConfig(const v1::RunConfig& config, const model::ModelConfig& shape) {
  return shape.lora.enabled() ? model::FormatAdapterConfig(shape.lora, config.model().path()) : "";
}

trainer::PolicyTrainer::Options MakePolicyTrainerOptions(const v1::RunConfig& config, const model::ModelConfig& shape) {
  trainer::PolicyTrainer::Options options;
  options.model = shape;
  options.adapter_config = MakeAdapterConfig(config, shape);
  options.optimizer = MakeOptimizerOptions(config);
  options.step.loss = MakeLossOptions(config);
  options.reference_after_supervised = config.train().sft_steps() > 0;
  // The trained policy must be the one that samples come from: the log-probabilities of both are computed at this
  // temperature.
  options.step.temperature = config.rollout().temperature();
  options.step.updates_per_batch = config.train().updates_per_batch();
  options.step.micro_batch_tokens = config.train().micro_batch_tokens();
  options.step.recompute = ToRecompute(config.train());
  options.step.float32_logits = config.train().float32_logits();
  options.step.deterministic = config.train().deterministic();
  options.compute_dtype = ToComputeDType(config.train());
  options.reduce_dtype = config.train().reduce_dtype() == "bfloat16" ? DType::kBFloat16 : DType::kFloat32;
  options.memory = MakeMemoryOptions(config);
  options.seed = static_cast<uint64_t>(config.run().seed());
  options.threads = static_cast<int>(config.run().threads());
  return options;
}

absl::Status CheckBase(const trainer::Policy& policy, const model::AdapterFiles* adapters) {
  if (adapters == nullptr || !adapters->base_digest().has_value()) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(const uint64_t base, policy.BaseDigest());
  if (base == *adapters->base_digest()) return absl::OkStatus();
  return Error(
      absl::StatusCode::kFailedPrecondition, reason::kBaseMismatch,
      absl::StrFormat("lora.path: the adapters were trained on a base of digest %016x, and the model of this run "
                      "has %016x; give the model.path that they were trained on",
                      *adapters->base_digest(), base));
}

int64_t CountSupervisedSteps(const v1::RunConfig& config) {
  // All steps, however far later resumes extend the run.
  return config.train().objective() == "sft" ? std::numeric_limits<int64_t>::max() : config.train().sft_steps();
}

SamplingParams MakeSampling(const v1::RunConfig& config, const trainer::PromptSource& prompts) {
  SamplingParams sampling;
  sampling.temperature = static_cast<float>(config.rollout().temperature());
  sampling.top_p = static_cast<float>(config.rollout().top_p());
  sampling.top_k = static_cast<int32_t>(config.rollout().top_k());
  sampling.max_new_tokens = static_cast<int32_t>(config.rollout().max_new_tokens());
  sampling.stop_token_ids = prompts.stop_token_ids();
  return sampling;
}

SamplingParams MakeEvaluationSampling(const v1::RunConfig& config, const trainer::PromptSource& prompts) {
  SamplingParams sampling = MakeSampling(config, prompts);
  // Temperature 0: an evaluation measures the policy, not chance.
  sampling.temperature = 0;
  return sampling;
}

SamplingParams MakeSetSampling(const v1::RunConfig& config, const EvaluationSetText& set,
                               const trainer::PromptSource& prompts) {
  SamplingParams sampling = MakeSampling(config, prompts);
  sampling.temperature = static_cast<float>(set.temperature >= 0 ? set.temperature
                                            : set.samples > 1    ? config.rollout().temperature()
                                                                 : 0.0);
  sampling.top_p = static_cast<float>(set.top_p);
  if (set.max_new_tokens > 0) sampling.max_new_tokens = static_cast<int32_t>(set.max_new_tokens);
  return sampling;
}

}  // namespace syncopate::config
