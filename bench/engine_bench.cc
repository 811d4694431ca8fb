// The hot loops of one process: decode steps, the training step, staging. One thread, with the demo's model.
//   build/release/bin/engine_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only

#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "base/digest.h"
#include "base/philox.h"
#include "base/serving.h"
#include "rollouter/engine/engine.h"
#include "synchronizer/transport/send_arena.h"
#include "tests/support/small_model.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate {
namespace {

constexpr int kPromptTokens = 6, kAnswerTokens = 5;

class IgnoringSink final : public rollouter::GenerationSink {
 public:
  void OnFinished(int32_t sample, Trajectory trajectory) override {}
};

// Tokens per second of whole requests: groups of 16 samples, with the demo's prompts and answers.
void BM_Generate(benchmark::State& state) {
  const int64_t sequences = state.range(0);
  const model::ModelConfig config = testing::SmallModel();
  const Manifest manifest = model::MakeManifest(config, DType::kFloat32).value();
  at::set_num_threads(1);
  auto made = rollouter::Engine::Create(config, std::make_shared<rollouter::HostBackend>(config, manifest),
                                        {.max_sequences = sequences});
  if (!made.ok()) return state.SkipWithError("no engine");
  rollouter::Engine& engine = **made;
  model::InitialiseWeights(config, manifest, 7, reinterpret_cast<float*>(engine.policy().shadow()));
  if (!engine.policy().Install({1, 0}, 1).ok()) return state.SkipWithError("no weights");
  auto sink = std::make_shared<IgnoringSink>();
  int64_t requests = 0;
  for (auto _ : state) {
    for (int64_t group = 0; group < std::max<int64_t>(1, sequences / 16); ++group) {
      rollouter::GenerationRequest request;
      for (int i = 0; i < kPromptTokens; ++i) request.prompt_ids.push_back(i);
      request.sampling.max_new_tokens = kAnswerTokens;
      for (int i = 0; i < std::min<int64_t>(16, sequences); ++i) request.seeds.push_back(SampleSeed(requests, i));
      ++requests;
      engine.Add(std::move(request), sink);
    }
    while (engine.HasWork()) {
      if (!engine.Step().ok()) return state.SkipWithError("a step failed");
    }
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(engine.generated_tokens()), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Generate)->Arg(1)->Arg(16)->Arg(64)->Arg(128)->Arg(256)->Unit(benchmark::kMillisecond);

// 256 answers of lengths over two orders of magnitude, in a third of the memory that 64 of them need. Argument 0: a
// sequence starts as soon as there is room; 1: the number of running sequences follows the blocks in use.
void BM_GenerateInTightMemory(benchmark::State& state) {
  model::ModelConfig config = testing::SmallModel();
  config.max_position_embeddings = 512;
  config.learned_positions = false;
  const Manifest manifest = model::MakeManifest(config, DType::kFloat32).value();
  at::set_num_threads(1);
  auto made = rollouter::Engine::Create(config, std::make_shared<rollouter::HostBackend>(config, manifest),
                                        {.max_sequences = 64, .kv_blocks = 160, .follow_usage = state.range(0) == 1});
  if (!made.ok()) return state.SkipWithError("no engine");
  rollouter::Engine& engine = **made;
  model::InitialiseWeights(config, manifest, 7, reinterpret_cast<float*>(engine.policy().shadow()));
  if (!engine.policy().Install({1, 0}, 1).ok()) return state.SkipWithError("no weights");
  auto sink = std::make_shared<IgnoringSink>();
  uint64_t requests = 0;
  for (auto _ : state) {
    for (int i = 0; i < 256; ++i) {
      rollouter::GenerationRequest request;
      for (uint64_t t = 0; t < 32; ++t) request.prompt_ids.push_back(static_cast<int32_t>(Philox4x32(i, t)[0] % 11));
      const double exponent = Philox4x32(i, 99)[0] / 4294967296.0 * 6;  // 2^0 to 2^6
      request.sampling.max_new_tokens = static_cast<int32_t>(6 * std::exp2(exponent));
      request.seeds = {++requests};
      engine.Add(std::move(request), sink);
    }
    while (engine.HasWork()) {
      if (!engine.Step().ok()) return state.SkipWithError("a step failed");
    }
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(engine.generated_tokens()), benchmark::Counter::kIsRate);
  state.counters["preemptions"] =
      benchmark::Counter(static_cast<double>(engine.counters().preemptions), benchmark::Counter::kAvgIterations);
  state.counters["prompt tokens"] =
      benchmark::Counter(static_cast<double>(engine.prefilled_tokens()), benchmark::Counter::kAvgIterations);
}
BENCHMARK(BM_GenerateInTightMemory)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

// One training step on 16 groups of 16 samples.
void BM_TrainStep(benchmark::State& state) {
  trainer::PolicyTrainer::Options options;
  options.model = testing::SmallModel();
  auto trainer = trainer::PolicyTrainer::Create(options).value();
  std::vector<TrajectoryGroup> groups(16);
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].prompt_ids.assign(kPromptTokens, static_cast<int32_t>(g % 8));
    for (uint64_t s = 0; s < 16; ++s) {
      Trajectory sample;
      for (uint64_t i = 0; i < kAnswerTokens; ++i) {
        sample.tokens.push_back(static_cast<int32_t>(Philox4x32(g, s * kAnswerTokens + i)[0] % 11));
      }
      sample.logprobs.assign(kAnswerTokens, -2.4f);
      sample.reward = static_cast<float>(s % 5) * 0.2f;
      groups[g].samples.push_back(sample);
    }
  }
  std::vector<const TrajectoryGroup*> batch;
  for (const TrajectoryGroup& group : groups) batch.push_back(&group);
  int64_t tokens = 0;
  for (auto _ : state) tokens += trainer->Step(batch).value().trained_samples * (kPromptTokens + kAnswerTokens - 1);
  state.counters["input tokens/s"] = benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
  // The cost of the digest in each step's line of metrics.jsonl, which is added to the step.
  constexpr int kDigests = 200;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kDigests; ++i) benchmark::DoNotOptimize(trainer->Digest());
  state.counters["digest ms"] =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / kDigests;
}
BENCHMARK(BM_TrainStep)->Unit(benchmark::kMillisecond);

// The cost of publishing a version for the step thread: copy, check for finite numbers, digests.
void BM_Stage(benchmark::State& state) {
  model::ModelConfig config = testing::SmallModel();
  config.hidden_size = state.range(0);
  config.intermediate_size = 3 * state.range(0);
  const Manifest manifest = model::MakeManifest(config, DType::kFloat32).value();
  auto arena = synchronizer::SendArena::Create(manifest, {}).value();
  std::vector<float> weights(static_cast<size_t>(manifest.arena_bytes()) / sizeof(float));
  model::InitialiseWeights(config, manifest, 1, weights.data());
  int64_t step = 0;
  for (auto _ : state) {
    auto staged = arena->Stage({1, ++step}, [&](char* to) {
      std::memcpy(to, weights.data(), static_cast<size_t>(manifest.arena_bytes()));
      return absl::OkStatus();
    });
    benchmark::DoNotOptimize(staged);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * manifest.arena_bytes());
}
BENCHMARK(BM_Stage)->Arg(64)->Arg(1024)->Unit(benchmark::kMillisecond);

void BM_Digest(benchmark::State& state) {
  std::vector<char> bytes(4 << 20, 1);
  for (auto _ : state) benchmark::DoNotOptimize(DigestBytes(bytes.data(), static_cast<int64_t>(bytes.size())));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes.size()));
}
BENCHMARK(BM_Digest);

}  // namespace
}  // namespace syncopate

// The daemons call it too: without it a step spends a third of its time on getting its memory from the kernel again.
int main(int argc, char** argv) {
  syncopate::PrepareToServe();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
