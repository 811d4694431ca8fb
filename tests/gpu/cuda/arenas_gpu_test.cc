#include <gtest/gtest.h>

#include <fcntl.h>

#include <cstring>

#include "bench/cuda/in_place_arena.h"
#include "bench/cuda/probe.h"
#include "cuda/cuda_arena.h"
#include "cuda/driver.h"
#include "cuda/lending_arena.h"
#include "synchronizer/cuda/cuda_arena_pair.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;

constexpr int64_t kBytes = int64_t{96} << 20;
constexpr absl::Duration kDeadline = absl::Seconds(20);

void Fill(char* data, int64_t bytes, uint64_t seed) {
  cuda::Stream stream = *cuda::Stream::Create(0);
  ASSERT_THAT(bench::FillWithRandomWeights(data, bytes, seed, stream.get()), IsOk());
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
}

// No loop runs in these tests, so every moment is between two steps.
absl::StatusOr<absl::Duration> AtOnce(const std::function<absl::Status()>& remap, absl::Duration) {
  SYNCOPATE_RETURN_IF_ERROR(remap());
  return absl::ZeroDuration();
}

uint64_t AddUp(const std::vector<char>& bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes.size(); i += 4) {
    uint32_t word;
    std::memcpy(&word, &bytes[i], 4);
    sum += word;
  }
  return sum;
}

TEST(GpuFactsTest, NameThisMachineAndItsGpu) {
  SYNCOPATE_NEED_GPUS(1);
  absl::StatusOr<cuda::GpuFacts> facts = cuda::ReadGpuFacts(0);
  ASSERT_THAT(facts, IsOk());
  EXPECT_EQ(facts->gpu_uuid.size(), std::string("GPU-00000000-0000-0000-0000-000000000000").size());
  EXPECT_EQ(facts->host, cuda::ReadGpuFacts(0)->host);
  for (const std::string& peer : facts->peer_gpus) EXPECT_NE(peer, facts->gpu_uuid);
}

TEST(GpuFactsTest, AGpuThatIsNotThereIsRefusedByNumber) {
  SYNCOPATE_NEED_GPUS(1);
  EXPECT_THAT(cuda::CheckGpu(64), HasReason("NO_GPU"));
  EXPECT_THAT(cuda::CudaArena::Create(kBytes, {.device = 64}), HasReason("NO_GPU"));
}

TEST(CudaArenaTest, IsZeroAtFirst) {
  SYNCOPATE_NEED_GPUS(1);
  std::unique_ptr<cuda::CudaArena> arena = *cuda::CudaArena::Create(kBytes, {});
  EXPECT_EQ(ToHost(0, arena->data(), kBytes), std::vector<char>(kBytes, 0));
}

TEST(LendingArenaTest, ARangeInItsMiddleHasTheMemoryThatIsMappedThereAndTheRestStays) {
  SYNCOPATE_NEED_GPUS(1);
  constexpr int64_t kRange = int64_t{32} << 20, kOffset = int64_t{32} << 20;
  auto arena = *cuda::LendingArena::Create(kBytes, {.offset = kOffset, .bytes = kRange}, {});
  char* const data = arena->data();
  EXPECT_EQ(arena->allocated_bytes(), kBytes - kRange);
  cuda::GpuMemoryBlock first = *cuda::GpuMemoryBlock::Create(0, kRange, 0, "the first");
  cuda::GpuMemoryBlock second = *cuda::GpuMemoryBlock::Create(0, kRange, 0, "the second");
  ASSERT_THAT(arena->MapBorrowed(first), IsOk());
  EXPECT_EQ(arena->allocated_bytes(), kBytes);
  Fill(data, kBytes, 1);
  const std::vector<char> whole = ToHost(0, data, kBytes);
  ASSERT_THAT(arena->UnmapBorrowed(), IsOk());
  ASSERT_THAT(arena->MapBorrowed(second), IsOk());
  Fill(data + kOffset, kRange, 2);
  ASSERT_THAT(arena->UnmapBorrowed(), IsOk());
  ASSERT_THAT(arena->MapBorrowed(first), IsOk());
  EXPECT_EQ(ToHost(0, data, kBytes), whole);
  ASSERT_THAT(arena->Release(), IsOk());
  EXPECT_EQ(arena->allocated_bytes(), 0);
  ASSERT_THAT(arena->Restore(), IsOk());
  EXPECT_EQ(arena->data(), data);
  EXPECT_EQ(ToHost(0, data, kOffset), std::vector<char>(kOffset, 0));
  ASSERT_THAT(arena->MapBorrowed(second), IsOk());
  Fill(data, kBytes, 3);
}

TEST(CudaArenaTest, TooLargeAnArenaSaysHowMuchIsNeededAndHowMuchIsFree) {
  SYNCOPATE_NEED_GPUS(1);
  absl::StatusOr<std::unique_ptr<cuda::CudaArena>> arena =
      cuda::CudaArena::Create(int64_t{1} << 40, {.what = "the shadow arena"});
  EXPECT_THAT(arena, HasReason("OUT_OF_GPU_MEMORY"));
  EXPECT_THAT(arena, HasMessage(HasSubstr("the shadow arena needs 1099.51 GB of GPU 0")));
  EXPECT_THAT(arena, HasMessage(HasSubstr("are free")));
}

TEST(CudaArenaTest, AFailedAllocationInPartsTakesNothing) {
  SYNCOPATE_NEED_GPUS(1);
  const int64_t before = cuda::ReadGpuMemory(0)->free;
  EXPECT_THAT(cuda::CudaArena::Create(int64_t{1} << 40, {.chunk_bytes = int64_t{4} << 30}),
              HasReason("OUT_OF_GPU_MEMORY"));
  EXPECT_GE(cuda::ReadGpuMemory(0)->free, before - (int64_t{64} << 20));
}

class ExportTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(ExportTest, AMappedExportIsTheSameMemory) {
  SYNCOPATE_NEED_GPUS(1);
  std::unique_ptr<cuda::CudaArena> arena = *cuda::CudaArena::Create(kBytes, {.chunk_bytes = GetParam()});
  absl::StatusOr<cuda::ExportedMemory> exported = arena->Export();
  ASSERT_THAT(exported, IsOk());
  EXPECT_EQ(exported->chunks.size(), GetParam() == 0 ? 1u : 3u);
  absl::StatusOr<std::unique_ptr<cuda::CudaArena>> mapped = cuda::CudaArena::Import(*exported, 0);
  ASSERT_THAT(mapped, IsOk());
  EXPECT_EQ((*mapped)->id(), arena->id());
  EXPECT_NE((*mapped)->data(), arena->data());
  Fill(arena->data(), kBytes, 11);
  EXPECT_EQ(ToHost(0, (*mapped)->data(), kBytes), ToHost(0, arena->data(), kBytes));
  // The memory outlives the arena that made it.
  const std::vector<char> bytes = ToHost(0, arena->data(), kBytes);
  arena.reset();
  EXPECT_EQ(ToHost(0, (*mapped)->data(), kBytes), bytes);
}

TEST_P(ExportTest, APeerSeesTheSameMemory) {
  SYNCOPATE_NEED_GPUS(2);
  if (!cuda::CheckPeerAccess(1, 0).ok()) GTEST_SKIP() << "GPUs 0 and 1 have no peer access";
  std::unique_ptr<cuda::CudaArena> arena = *cuda::CudaArena::Create(kBytes, {.chunk_bytes = GetParam()});
  Fill(arena->data(), kBytes, 12);
  absl::StatusOr<std::unique_ptr<cuda::CudaArena>> mapped = cuda::CudaArena::Import(*arena->Export(), 1);
  ASSERT_THAT(mapped, IsOk());
  EXPECT_EQ(ToHost(1, (*mapped)->data(), kBytes), ToHost(0, arena->data(), kBytes));
}

INSTANTIATE_TEST_SUITE_P(Chunks, ExportTest, ::testing::Values(0, int64_t{32} << 20));

TEST(ImportTest, GarbageIsRefused) {
  SYNCOPATE_NEED_GPUS(1);
  cuda::ExportedMemory none;
  EXPECT_THAT(cuda::CudaArena::Import(none, 0), HasReason("BAD_MEMORY_EXPORT"));
  cuda::ExportedMemory odd;
  odd.chunks = {12345};
  odd.fds.emplace_back(open("/dev/null", O_RDONLY));
  EXPECT_THAT(cuda::CudaArena::Import(odd, 0), HasReason("BAD_MEMORY_EXPORT"));
  cuda::ExportedMemory foreign;
  foreign.chunks = {kBytes};
  foreign.fds.emplace_back(open("/dev/null", O_RDONLY));
  EXPECT_FALSE(cuda::CudaArena::Import(foreign, 0).ok());
  EXPECT_THAT(bench::CheckContext(0), IsOk());
}

class RemapTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(RemapTest, AnInstallExchangesTheContentsUnderFixedAddresses) {
  SYNCOPATE_NEED_GPUS(1);
  std::unique_ptr<CudaArenaPair> pair = *CudaArenaPair::Create(kBytes, AtOnce, {.arenas = {.chunk_bytes = GetParam()}});
  char* const live = pair->live();
  char* const shadow = pair->shadow();
  Fill(shadow, kBytes, 21);
  const std::vector<char> bytes = ToHost(0, shadow, kBytes);
  const uint64_t shadow_id = pair->shadow_id();
  ASSERT_THAT(pair->Install({1, 1}, 0, kDeadline), IsOk());
  EXPECT_EQ(pair->live(), live);
  EXPECT_EQ(pair->shadow(), shadow);
  EXPECT_EQ(ToHost(0, live, kBytes), bytes);
  EXPECT_EQ(ToHost(0, shadow, kBytes), std::vector<char>(kBytes, 0));
  EXPECT_NE(pair->shadow_id(), shadow_id);
  EXPECT_EQ(pair->serving(), (PolicyVersion{1, 1}));
  ASSERT_THAT(pair->Install({1, 2}, 0, kDeadline), IsOk());
  EXPECT_EQ(pair->shadow_id(), shadow_id);
  pair->RestoreShadow();  // until then the shadow's address maps the memory that serves
  EXPECT_EQ(ToHost(0, shadow, kBytes), bytes);
  EXPECT_EQ(ToHost(0, live, kBytes), std::vector<char>(kBytes, 0));
}

TEST_P(RemapTest, TwoInstallsInARowExchangeTheContentsTwiceWithoutTheShadowBeingMappedBetween) {
  SYNCOPATE_NEED_GPUS(1);
  std::unique_ptr<CudaArenaPair> pair = *CudaArenaPair::Create(kBytes, AtOnce, {.arenas = {.chunk_bytes = GetParam()}});
  Fill(pair->shadow(), kBytes, 23);
  const std::vector<char> bytes = ToHost(0, pair->shadow(), kBytes);
  ASSERT_THAT(pair->Install({1, 1}, 0, kDeadline), IsOk());
  EXPECT_EQ(ToHost(0, pair->live(), kBytes), bytes);
  ASSERT_THAT(pair->Install({1, 2}, 0, kDeadline), IsOk());
  EXPECT_EQ(ToHost(0, pair->live(), kBytes), std::vector<char>(kBytes, 0));
  EXPECT_EQ(ToHost(0, pair->shadow(), kBytes), bytes);
  Fill(pair->shadow(), kBytes, 24);
  EXPECT_EQ(ToHost(0, pair->live(), kBytes), std::vector<char>(kBytes, 0)) << "the shadow has its own memory";
}

TEST_P(RemapTest, WhatAPeerMappedStaysTheMemoryItWas) {
  SYNCOPATE_NEED_GPUS(1);
  std::unique_ptr<CudaArenaPair> pair = *CudaArenaPair::Create(kBytes, AtOnce, {.arenas = {.chunk_bytes = GetParam()}});
  std::unique_ptr<cuda::CudaArena> mapped = *cuda::CudaArena::Import(*pair->ExportShadow(), 0);
  EXPECT_EQ(mapped->id(), pair->shadow_id());
  Fill(pair->shadow(), kBytes, 22);
  ASSERT_THAT(pair->Install({1, 1}, 0, kDeadline), IsOk());
  EXPECT_EQ(ToHost(0, mapped->data(), kBytes), ToHost(0, pair->live(), kBytes));
  EXPECT_NE(mapped->id(), pair->shadow_id());
}

INSTANTIATE_TEST_SUITE_P(Chunks, RemapTest, ::testing::Values(0, int64_t{32} << 20));

TEST(RemapTest, AGraphCapturedBeforeReadsTheNewWeightsAfterEachInstall) {
  SYNCOPATE_NEED_GPUS(1);
  bench::DecodeLikeLoop* running = nullptr;
  auto between_steps = [&running](const std::function<absl::Status()>& remap, absl::Duration deadline) {
    return running->BetweenSteps(remap, deadline);
  };
  std::unique_ptr<CudaArenaPair> pair = *CudaArenaPair::Create(kBytes, between_steps, {});
  std::unique_ptr<bench::DecodeLikeLoop> loop =
      *bench::DecodeLikeLoop::Start(pair->live(), kBytes, {});  // destroyed before the memory
  running = loop.get();
  ASSERT_THAT(loop->AwaitSteps(1, kDeadline), IsOk());
  EXPECT_EQ(loop->Read().checksum, 0u);
  for (int install = 1; install <= 10; ++install) {
    Fill(pair->shadow(), kBytes, static_cast<uint64_t>(install));
    const uint64_t expected = AddUp(ToHost(0, pair->shadow(), kBytes));
    absl::StatusOr<InstallResult> installed = pair->Install({1, install}, 0, kDeadline);
    ASSERT_THAT(installed, IsOk());
    EXPECT_GT(installed->pause_seconds, 0);
    // At most one step was launched before the install was requested, and none during it.
    ASSERT_THAT(loop->AwaitSteps(loop->Read().steps + 1, kDeadline), IsOk());
    EXPECT_EQ(loop->Read().checksum, expected) << "install " << install;
  }
  EXPECT_THAT(loop->status(), IsOk());
}

TEST(RemapTest, MemoryIsFlatOverManyInstalls) {
  SYNCOPATE_NEED_GPUS(1);
  std::unique_ptr<CudaArenaPair> pair = *CudaArenaPair::Create(kBytes, AtOnce, {});
  for (int install = 1; install <= 20; ++install) ASSERT_THAT(pair->Install({1, install}, 0, kDeadline), IsOk());
  const int64_t free = cuda::ReadGpuMemory(0)->free;
  for (int install = 21; install <= 220; ++install) ASSERT_THAT(pair->Install({1, install}, 0, kDeadline), IsOk());
  EXPECT_GE(cuda::ReadGpuMemory(0)->free, free);
}

// The process's driver with maps that fail: those from number `fail_from` to before `fail_until`, counted from Arm().
class FailingDriver {
 public:
  FailingDriver() : driver_(**cuda::Driver::Load()) {
    real_map = driver_.map;
    maps = fail_from = fail_until = 0;
    driver_.map = &Map;
  }
  void Arm(int from, int until) {
    maps = 0;
    fail_from = from;
    fail_until = until;
  }
  const cuda::Driver* get() const { return &driver_; }

 private:
  static CUresult Map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags) {
    const int map = maps++;
    if (map >= fail_from && map < fail_until) return CUDA_ERROR_UNKNOWN;
    return real_map(address, size, offset, handle, flags);
  }
  static inline decltype(cuda::Driver::map) real_map = nullptr;
  static inline int maps = 0;
  static inline int fail_from = 0;
  static inline int fail_until = 0;
  cuda::Driver driver_;
};

TEST(RemapTest, AnInstallThatFailsHalfwayIsUndone) {
  SYNCOPATE_NEED_GPUS(1);
  FailingDriver driver;
  std::unique_ptr<CudaArenaPair> pair = *CudaArenaPair::Create(kBytes, AtOnce, {.arenas = {.driver = driver.get()}});
  Fill(pair->shadow(), kBytes, 32);
  ASSERT_THAT(pair->Install({1, 1}, 0, kDeadline), IsOk());
  const std::vector<char> live = ToHost(0, pair->live(), kBytes);
  Fill(pair->shadow(), kBytes, 33);
  const std::vector<char> shadow = ToHost(0, pair->shadow(), kBytes);
  driver.Arm(0, 1);
  EXPECT_THAT(pair->Install({1, 2}, 0, kDeadline), HasReason("CUDA_ERROR"));
  EXPECT_EQ(pair->serving(), (PolicyVersion{1, 1}));
  EXPECT_EQ(ToHost(0, pair->live(), kBytes), live);
  EXPECT_EQ(ToHost(0, pair->shadow(), kBytes), shadow);
  ASSERT_THAT(pair->Install({1, 2}, 0, kDeadline), IsOk());
  EXPECT_EQ(ToHost(0, pair->live(), kBytes), shadow);
  EXPECT_THAT(bench::CheckContext(0), IsOk());
}

TEST(RemapTest, AShadowThatCannotBeMappedAfterAnInstallIsMappedForTheNextTransfer) {
  SYNCOPATE_NEED_GPUS(1);
  FailingDriver driver;
  std::unique_ptr<CudaArenaPair> pair = *CudaArenaPair::Create(kBytes, AtOnce, {.arenas = {.driver = driver.get()}});
  Fill(pair->shadow(), kBytes, 34);
  const std::vector<char> shadow = ToHost(0, pair->shadow(), kBytes);
  driver.Arm(1, 3);  // fails after the map of the live weights
  ASSERT_THAT(pair->Install({1, 1}, 0, kDeadline), IsOk());
  pair->RestoreShadow();
  EXPECT_EQ(ToHost(0, pair->live(), kBytes), shadow);
  EXPECT_THAT(pair->BeginCheck({}), HasReason("CUDA_ERROR"));
  EXPECT_THAT(pair->BeginCheck({}), IsOk());
  Fill(pair->shadow(), kBytes, 35);
  EXPECT_EQ(ToHost(0, pair->live(), kBytes), shadow);
}

TEST(RemapTest, WeightsThatCannotBeMappedAgainAreSaidToBeLost) {
  SYNCOPATE_NEED_GPUS(1);
  FailingDriver driver;
  std::unique_ptr<CudaArenaPair> pair = *CudaArenaPair::Create(kBytes, AtOnce, {.arenas = {.driver = driver.get()}});
  driver.Arm(0, 1000);
  EXPECT_THAT(pair->Install({1, 1}, 0, kDeadline), HasReason("WEIGHTS_UNMAPPED"));
  driver.Arm(0, 0);
  EXPECT_THAT(pair->Install({1, 1}, 0, kDeadline), HasReason("WEIGHTS_UNMAPPED"));
  EXPECT_TRUE(pair->serving().IsNone());
}

TEST(RemapTest, AnInstallThatFindsNoMomentChangesNothing) {
  SYNCOPATE_NEED_GPUS(1);
  auto never = [](const std::function<absl::Status()>&, absl::Duration) -> absl::StatusOr<absl::Duration> {
    return Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE", "no moment between two steps");
  };
  std::unique_ptr<CudaArenaPair> pair = *CudaArenaPair::Create(kBytes, never, {});
  Fill(pair->shadow(), kBytes, 31);
  const uint64_t shadow_id = pair->shadow_id();
  EXPECT_THAT(pair->Install({1, 1}, 0, kDeadline), HasReason("INSTALL_DEADLINE"));
  EXPECT_EQ(pair->shadow_id(), shadow_id);
  EXPECT_TRUE(pair->serving().IsNone());
  EXPECT_EQ(ToHost(0, pair->live(), kBytes), std::vector<char>(kBytes, 0));
}

TEST(InPlaceArenaTest, GenerationStandsStillFromTheTransferToTheInstall) {
  SYNCOPATE_NEED_GPUS(1);
  bench::DecodeLikeLoop* running = nullptr;
  bench::InPlaceArena::Generation generation{[&running](absl::Duration deadline) { return running->Pause(deadline); },
                                             [&running] { running->Resume(); }};
  std::unique_ptr<bench::InPlaceArena> arena = *bench::InPlaceArena::Create(kBytes, generation, {});
  EXPECT_TRUE(arena->in_place());
  EXPECT_EQ(arena->shadow(), arena->live());
  std::unique_ptr<bench::DecodeLikeLoop> loop =
      *bench::DecodeLikeLoop::Start(arena->live(), kBytes, {});  // destroyed before the memory
  running = loop.get();
  ASSERT_THAT(loop->AwaitSteps(3, kDeadline), IsOk());

  ASSERT_THAT(arena->BeginInPlace(PolicyVersion{1, 1}, kDeadline), IsOk());
  const int64_t steps = loop->Read().steps;
  Fill(arena->shadow(), kBytes, 41);
  EXPECT_EQ(loop->Read().steps, steps);
  EXPECT_TRUE(arena->serving().IsNone());
  absl::StatusOr<InstallResult> installed = arena->Install({1, 1}, 0, kDeadline);
  ASSERT_THAT(installed, IsOk());
  EXPECT_GT(installed->pause_seconds, 0);
  ASSERT_THAT(loop->AwaitSteps(steps + 2, kDeadline), IsOk());
  EXPECT_EQ(loop->Read().checksum, AddUp(ToHost(0, arena->live(), kBytes)));
  EXPECT_EQ(arena->serving(), (PolicyVersion{1, 1}));
}

TEST(InPlaceArenaTest, AfterAFailedTransferNothingServesUntilAGoodOne) {
  SYNCOPATE_NEED_GPUS(1);
  int pauses = 0;
  int resumes = 0;
  bench::InPlaceArena::Generation generation{[&pauses](absl::Duration) {
                                               ++pauses;
                                               return absl::OkStatus();
                                             },
                                             [&resumes] { ++resumes; }};
  std::unique_ptr<bench::InPlaceArena> arena = *bench::InPlaceArena::Create(kBytes, generation, {});
  ASSERT_THAT(arena->BeginInPlace(PolicyVersion{1, 1}, kDeadline), IsOk());
  arena->Invalidate();
  EXPECT_TRUE(arena->serving().IsNone());
  EXPECT_EQ(resumes, 0);
  ASSERT_THAT(arena->BeginInPlace(PolicyVersion{1, 1}, kDeadline), IsOk());
  ASSERT_THAT(arena->Install({1, 2}, 0, kDeadline), IsOk());
  EXPECT_EQ(pauses, 1);
  EXPECT_EQ(resumes, 1);
  EXPECT_EQ(arena->serving(), (PolicyVersion{1, 2}));
  EXPECT_THAT(arena->Install({1, 3}, 0, kDeadline), HasReason("NOT_IN_PLACE"));
}

TEST(PeerCopyTest, MeasuresEveryPairAtOnce) {
  SYNCOPATE_NEED_GPUS(2);
  if (!cuda::CheckPeerAccess(1, 0).ok()) GTEST_SKIP() << "GPUs 0 and 1 have no peer access";
  absl::StatusOr<std::vector<double>> rates = bench::MeasurePeerCopies({{0, 1}, {1, 0}}, int64_t{256} << 20, 3);
  ASSERT_THAT(rates, IsOk());
  ASSERT_EQ(rates->size(), 2u);
  for (double rate : *rates) EXPECT_GT(rate, 1.0);
}

}  // namespace
}  // namespace syncopate::synchronizer
