// How fast one GPU trains: `syncopate-bench-train --model qwen2.5-0.5b`. One JSON line as each case ends.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/time/time.h"
#include "base/clock.h"
#include "bench/train/train_world.h"

namespace syncopate::bench {
namespace {

constexpr int64_t kLongest = 4096;

struct Arguments {
  std::string model = "qwen2.5-0.5b";
  int64_t tokens = 16384;
  bool ragged = false;
  bool float32_logits = false;
  std::string recompute = "selective";
  int steps = 12;           // measured
  double warm_seconds = 8;  // of steps before those, so that clocks have settled under load
  bool logprobs = false;
};

model::ModelConfig Shape(int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads, int64_t kv_heads,
                         int64_t head_dim, int64_t vocab, bool tied) {
  model::ModelConfig config;
  config.vocab_size = vocab;
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = head_dim;
  config.max_position_embeddings = kLongest;
  config.rope_theta = 1e6;
  config.qk_norm = false;
  config.tie_word_embeddings = tied;
  return config;
}

const std::map<std::string, model::ModelConfig>& Shapes() {
  static const auto* const shapes = new std::map<std::string, model::ModelConfig>{
      {"qwen2.5-0.5b", Shape(896, 4864, 24, 14, 2, 64, 151936, true)},
      {"qwen2.5-1.5b", Shape(1536, 8960, 28, 12, 2, 128, 151936, true)},
      {"qwen2.5-7b-4-layers", Shape(3584, 18944, 4, 28, 4, 128, 152064, false)}};
  return *shapes;
}

// All kLongest, or log-normal between 256 and that; the last one takes what is left. The draws are those of
// torch.Generator().manual_seed(7), as the Python peers make them.
std::vector<int64_t> Lengths(int64_t tokens, bool ragged) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  std::vector<int64_t> lengths;
  while (tokens > 0) {
    double length = kLongest;
    if (ragged) {
      length = std::exp(6.9 + 0.8 * at::randn({1}, generator, at::TensorOptions(at::kFloat)).item<double>());
      length = std::max(256.0, length);
    }
    lengths.push_back(static_cast<int64_t>(std::min({length, double{kLongest}, static_cast<double>(tokens)})));
    tokens -= lengths.back();
  }
  return lengths;
}

// Events on the current stream; milliseconds between neighbours.
class Laps {
 public:
  ~Laps() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  void Mark() {
    cudaEvent_t event = nullptr;
    C10_CUDA_CHECK(cudaEventCreate(&event));
    events_.push_back(event);
    C10_CUDA_CHECK(cudaEventRecord(event, c10::cuda::getCurrentCUDAStream().stream()));
  }
  std::vector<double> Read() const {
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<double> laps;
    for (size_t i = 1; i < events_.size(); ++i) {
      float ms = 0;
      C10_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[i - 1], events_[i]));
      laps.push_back(ms);
    }
    return laps;
  }

 private:
  std::vector<cudaEvent_t> events_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Measure(const Arguments& arguments, TrainWorld* world, const std::function<void()>& once, double flops) {
  const absl::Time warm_until = Clock::Real()->Now() + absl::Seconds(arguments.warm_seconds);
  while (Clock::Real()->Now() < warm_until) {
    once();
    C10_CUDA_CHECK(cudaDeviceSynchronize());
  }
  Laps laps;
  const absl::Time begin = Clock::Real()->Now();
  laps.Mark();
  for (int i = 0; i < arguments.steps; ++i) {
    once();
    laps.Mark();
  }
  const double queued_ms = absl::ToDoubleMilliseconds(Clock::Real()->Now() - begin) / arguments.steps;
  const double ms = Median(laps.Read());
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  std::cout << nlohmann::json{{"case", arguments.logprobs ? "logprobs" : "step"},
                              {"model", arguments.model},
                              {"tokens", world->tokens()},
                              {"lengths", arguments.ragged ? "ragged" : "4096"},
                              {"recompute", arguments.recompute},
                              {"float32_logits", arguments.float32_logits},
                              {"ms", ms},
                              {"tokens_per_second", static_cast<double>(world->tokens()) / ms * 1e3},
                              {"host_ms", queued_ms},
                              {"model_tflops", flops / ms / 1e9},
                              {"entropy", world->entropy().mean().item<double>()},
                              {"allocated_peak_gib", gib(stats.allocated_bytes[0].peak)},
                              {"reserved_peak_gib", gib(stats.reserved_bytes[0].peak)}}
                   .dump()
            << std::endl;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Training steps at the shapes of real models on one GPU; one JSON line a case");
  std::vector<std::string> names;
  for (const auto& [name, shape] : Shapes()) names.push_back(name);
  app.add_option("--model", arguments.model, "shape")->check(CLI::IsMember(names))->capture_default_str();
  app.add_option("--tokens", arguments.tokens, "packed tokens of a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--ragged", arguments.ragged, "lengths between 256 and 4096 in place of 4096");
  app.add_flag("--float32-logits", arguments.float32_logits, "logits in float32");
  app.add_option("--recompute", arguments.recompute, "what backward computes again")
      ->check(CLI::IsMember({"none", "selective", "full"}))
      ->capture_default_str();
  app.add_option("--steps", arguments.steps, "steps that are measured")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--warm-seconds", arguments.warm_seconds, "of steps before them")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--logprobs", arguments.logprobs, "the pass for log-probabilities alone");
  CLI11_PARSE(app, argc, argv);

  at::NoGradGuard no_grad;
  TrainWorld::Options options;
  options.model = Shapes().at(arguments.model);
  options.lengths = Lengths(arguments.tokens, arguments.ragged);
  options.float32_logits = arguments.float32_logits;
  options.recompute = arguments.recompute == "none"   ? trainer::Recompute::kNone
                      : arguments.recompute == "full" ? trainer::Recompute::kFull
                                                      : trainer::Recompute::kSelective;
  TrainWorld world(options);
  if (arguments.logprobs) {
    Measure(
        arguments, &world, [&world] { world.LogProbs(); }, world.step_flops() / 3);
  } else {
    Measure(
        arguments, &world, [&world] { world.Step(); }, world.step_flops());
  }
  return 0;
}

}  // namespace
}  // namespace syncopate::bench

int main(int argc, char** argv) {
  try {
    return syncopate::bench::Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
