// Measures how fast the kernels and the remap are, relative to the GPU's memory in the same run. Each test prints a
// line, and fails only where a rate is so low that something must be broken.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "bench/cuda/probe.h"
#include "model/presets.h"
#include "synchronizer/cuda/cuda_arena_pair.h"
#include "synchronizer/cuda/cuda_send_arena.h"
#include "synchronizer/plan/layout_text.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer {
namespace {

using ::syncopate::testing::IsOk;

constexpr absl::Duration kDeadline = absl::Seconds(60);
constexpr int kRepeats = 7;
constexpr double kGiga = 1e9;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The rate of a plain copy: bytes read plus bytes written, per second.
double CopyRate() {
  static const double rate = 2 * (*bench::MeasurePeerCopies({{0, 0}}, int64_t{4} << 30, kRepeats))[0] * kGiga;
  return rate;
}

// Expects at least this share of the copy rate.
void Report(const char* what, int64_t bytes, double seconds, double least) {
  const double rate = static_cast<double>(bytes) / seconds;
  std::printf("%-58s %7.2f GB %8.3f ms %7.0f GB/s %5.2f of a copy\n", what, bytes / kGiga, seconds * 1e3, rate / kGiga,
              rate / CopyRate());
  EXPECT_GT(rate / CopyRate(), least) << what;
}

// The largest model whose arenas fit three times into the free memory.
std::string ModelThatFits() { return cuda::ReadGpuMemory(0)->free > int64_t{60} << 30 ? "qwen2.5-7b" : "qwen2.5-0.5b"; }

Manifest ManifestOfPreset(const std::string& name) {
  return *model::MakeManifest(*model::FindPreset(name), DType::kBFloat16);
}

struct StageCase {
  const char* source;
  const char* destination;
  double least;
};

class StageRateTest : public ::testing::TestWithParam<StageCase> {};

TEST_P(StageRateTest, StagesAtTheMemorysRate) {
  SYNCOPATE_NEED_GPUS(1);
  const std::string model = ModelThatFits();
  const Manifest manifest = ManifestOfPreset(model);
  const Layout source = *BuildLayout(manifest, GetParam().source);
  const SyncPlan plan = *SyncPlan::Create(manifest, source, *BuildLayout(manifest, GetParam().destination));
  std::unique_ptr<cuda::CudaArena> shard = *cuda::CudaArena::Create(source.arena_bytes(0), {.what = "a shard"});
  std::unique_ptr<CudaSendArena> arena = *CudaSendArena::Create(manifest, plan, 0, {});
  cuda::Stream stream = *cuda::Stream::Create(0);
  ASSERT_THAT(bench::FillWithRandomWeights(shard->data(), shard->bytes(), 1, stream.get()), IsOk());
  std::vector<double> seconds;
  for (int64_t step = 1; step <= kRepeats; ++step) {
    absl::StatusOr<CudaSendArena::Staged> staged =
        arena->Stage({1, step}, FlatShard(manifest, shard->data()), stream.get(), kDeadline);
    ASSERT_THAT(staged, IsOk());
    seconds.push_back(staged->seconds);
  }
  const std::string what = "stage " + model + " " + GetParam().source + " to " + GetParam().destination;
  Report(what.c_str(), source.arena_bytes(0) + plan.send_bytes(0), Median(seconds), GetParam().least);
}

INSTANTIATE_TEST_SUITE_P(Layouts, StageRateTest,
                         ::testing::Values(StageCase{"fsdp2:2:fp32", "whole", 0.5},
                                           StageCase{"flat:2:fp32", "whole", 0.5},
                                           StageCase{"fsdp2:2:bf16", "whole", 0.5},
                                           StageCase{"fsdp2:2:fp32", "tp:2", 0.4}));

TEST(CheckRateTest, ChecksAtTheMemorysRate) {
  SYNCOPATE_NEED_GPUS(1);
  const std::string model = ModelThatFits();
  const Manifest manifest = ManifestOfPreset(model);
  std::unique_ptr<cuda::CudaArena> arena = *cuda::CudaArena::Create(manifest.arena_bytes(), {});
  std::unique_ptr<CudaShadowChecker> checker = *CudaShadowChecker::Create({});
  cuda::Stream stream = *cuda::Stream::Create(0);
  ASSERT_THAT(bench::FillWithRandomWeights(arena->data(), arena->bytes(), 1, stream.get()), IsOk());
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  for (int64_t shift : {0, 2}) {
    ShadowContents contents;
    contents.numbers = {{{0, arena->bytes()}, DType::kBFloat16, "everything"}};
    for (const ByteRange& bucket : manifest.buckets()) {
      contents.buckets.push_back({bucket.begin + shift, std::min(bucket.end + shift, arena->bytes())});
    }
    std::vector<double> seconds;
    for (int repeat = 0; repeat <= kRepeats; ++repeat) {
      const absl::Time begun = Clock::Real()->Now();
      std::unique_ptr<ShadowCheck> check = *checker->Begin(arena->data(), contents);
      check->Arrived({0, arena->bytes()}, nullptr);
      ASSERT_THAT(check->Finish(kDeadline), IsOk());
      if (repeat > 0) seconds.push_back(absl::ToDoubleSeconds(Clock::Real()->Now() - begun));
    }
    Report(shift == 0 ? "check, buckets that start on words" : "check, buckets that do not (two passes)",
           arena->bytes(), Median(seconds), shift == 0 ? 0.4 : 0.1);
  }
}

TEST(RemapRateTest, RemapsWithinAMillisecondWithOneHandle) {
  SYNCOPATE_NEED_GPUS(1);
  const int64_t bytes = ManifestOfPreset(ModelThatFits()).arena_bytes();
  for (int64_t chunk_bytes : {int64_t{0}, int64_t{512} << 20}) {
    std::unique_ptr<RemappableArenas> arenas = *RemappableArenas::Create(bytes, {.chunk_bytes = chunk_bytes});
    std::vector<double> seconds;
    for (int repeat = 0; repeat <= kRepeats; ++repeat) {
      const absl::Time begun = Clock::Real()->Now();
      ASSERT_THAT(arenas->Exchange(), IsOk());
      const absl::Time ended = Clock::Real()->Now();
      ASSERT_THAT(arenas->MapShadow(), IsOk());
      if (repeat > 0) seconds.push_back(absl::ToDoubleSeconds(ended - begun));
    }
    std::printf("remap of %.2f GB, %-39s %20.3f ms\n", bytes / kGiga,
                chunk_bytes == 0 ? "one handle each" : "512 MiB handles", Median(seconds) * 1e3);
    EXPECT_LT(Median(seconds), chunk_bytes == 0 ? 3e-3 : 20e-3);
  }
}

TEST(DecodeLikeLoopTest, ReadsWeightsAtTheMemorysRate) {
  SYNCOPATE_NEED_GPUS(1);
  constexpr int64_t kBytes = int64_t{8} << 30;
  std::unique_ptr<cuda::CudaArena> arena = *cuda::CudaArena::Create(kBytes, {});
  std::unique_ptr<bench::DecodeLikeLoop> loop = *bench::DecodeLikeLoop::Start(arena->data(), kBytes, {});
  ASSERT_THAT(loop->AwaitSteps(10, kDeadline), IsOk());
  const bench::DecodeLikeLoop::Reading from = loop->Read();
  ASSERT_THAT(loop->AwaitSteps(from.steps + 100, kDeadline), IsOk());
  const bench::DecodeLikeLoop::Reading to = loop->Read();
  Report("a decode step that reads all weights", kBytes,
         absl::ToDoubleSeconds(to.at - from.at) / (to.steps - from.steps), 0.4);
}

}  // namespace
}  // namespace syncopate::synchronizer
