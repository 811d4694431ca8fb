#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/cuda/probe.h"
#include "cuda/device.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu/transports/gpu_rig.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::Each;

struct Shape {
  const char* source_layout;
  int replicas;
  const char* destination_layout;
};

std::vector<Shape> Shapes() {
  return {{"whole", 1, "whole:1"}, {"flat:2:fp32", 2, "whole:1"}, {"flat:3", 1, "whole:1"},
          {"whole", 3, "whole:1"}, {"flat:2", 3, "whole:1"},      {"fsdp2:2:fp32", 1, "tp:2"},
          {"layers:3", 2, "tp:2"}, {"replicated:2", 2, "whole:1"}};
}

// The tests run on one GPU, and spread over all available GPUs.
class IpcGpuTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { SYNCOPATE_NEED_GPUS(GetParam()); }
  void TearDown() override {
    for (int device = 0; device < std::min(GetParam(), cuda::GpuCount()); ++device)
      EXPECT_THAT(bench::CheckContext(device), IsOk());
  }
  std::unique_ptr<GpuRig> Make(const Shape& shape, int64_t width = 1, int64_t chunk_bytes = 1 << 20) {
    GpuRig::Options options;
    options.source_layout = shape.source_layout;
    options.replicas = shape.replicas;
    options.destination_layout = shape.destination_layout;
    options.gpus = GetParam();
    options.chunk_bytes = chunk_bytes;
    options.manifest = GpuTestModel(width);
    absl::StatusOr<std::unique_ptr<GpuRig>> rig = GpuRig::Create(std::move(options));
    EXPECT_THAT(rig.status(), IsOk());
    return rig.ok() ? *std::move(rig) : nullptr;
  }
};

TEST_P(IpcGpuTest, BringsEveryBitInEveryShapeThreeTimesInARow) {
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(std::string(shape.source_layout) + " to " + std::to_string(shape.replicas) + " " +
                 shape.destination_layout);
    std::unique_ptr<GpuRig> rig = Make(shape);
    ASSERT_NE(rig, nullptr);
    for (int64_t step : {1, 2, 3}) {
      ASSERT_THAT(rig->Stage(step), IsOk());
      ASSERT_THAT(rig->Sync(), IsOk());
      for (int i = 0; i < rig->receivers(); ++i) rig->ExpectServes(i, step);
    }
  }
}

TEST_P(IpcGpuTest, BringsAGigabyteInChunks) {
  std::unique_ptr<GpuRig> rig = Make({"flat:2", 2, "whole:1"}, 40, 64 << 20);
  ASSERT_NE(rig, nullptr);
  for (int64_t step : {1, 2}) {
    ASSERT_THAT(rig->Stage(step), IsOk());
    ASSERT_THAT(rig->Sync(), IsOk());
    rig->ExpectServes(0, step);
    rig->ExpectServes(1, step);
  }
}

TEST_P(IpcGpuTest, ALateJoinerIsServedAndTheOthersAreNot) {
  std::unique_ptr<GpuRig> rig = Make({"flat:2", 3, "whole:1"});
  ASSERT_NE(rig, nullptr);
  ASSERT_THAT(rig->Stage(1), IsOk());
  ASSERT_THAT(rig->Sync({0, 1}), IsOk());
  EXPECT_TRUE(rig->receiver(2)->receiver->serving().IsNone());
  ASSERT_THAT(rig->Sync({2}), IsOk());
  for (int i = 0; i < 3; ++i) rig->ExpectServes(i, 1);
}

TEST_P(IpcGpuTest, ASlotThatIsTakenWhileItIsReadIsNotInstalled) {
  std::unique_ptr<GpuRig> rig = Make({"whole", 1, "whole:1"}, 8);
  ASSERT_NE(rig, nullptr);
  ASSERT_THAT(rig->Stage(1), IsOk());
  ASSERT_THAT(rig->Sync(), IsOk());
  ASSERT_THAT(rig->Stage(2), IsOk());
  ASSERT_THAT(rig->Prepare(), IsOk());
  rig->receiver()->transport->on_arrival = [&](int before) {
    if (before != 2) return;
    EXPECT_THAT(rig->Stage(3), IsOk());
  };
  EXPECT_THAT(rig->Transfer()[0], HasReason("SUPERSEDED"));
  rig->Finish();
  rig->receiver()->transport->on_arrival = nullptr;
  EXPECT_EQ(rig->receiver()->receiver->serving(), (PolicyVersion{1, 1}));
  ASSERT_THAT(rig->Sync(), IsOk());
  rig->ExpectServes(0, 3);
}

TEST_P(IpcGpuTest, ASourceThatDiesInTheMiddleLeavesTheOldVersionServing) {
  std::unique_ptr<GpuRig> rig = Make({"flat:2", 1, "whole:1"}, 8);
  ASSERT_NE(rig, nullptr);
  ASSERT_THAT(rig->Stage(1), IsOk());
  ASSERT_THAT(rig->Sync(), IsOk());
  ASSERT_THAT(rig->Stage(2), IsOk());
  ASSERT_THAT(rig->Prepare(), IsOk());
  rig->receiver()->transport->on_arrival = [&](int before) {
    if (before == 1) rig->source(1)->transport.reset();  // its server is gone, as if the process were
  };
  const absl::Time begun = Clock::Real()->Now();
  EXPECT_THAT(rig->Transfer()[0], HasReason("PEER_LOST"));
  EXPECT_LT(Clock::Real()->Now() - begun, absl::Seconds(1));
  rig->receiver()->receiver->Finish(rig->attempt());
  EXPECT_EQ(rig->receiver()->target->serving(), (PolicyVersion{1, 1}));
}

TEST_P(IpcGpuTest, AnAttemptThatIsFinishedInTheMiddleIsCancelled) {
  std::unique_ptr<GpuRig> rig = Make({"whole", 1, "whole:1"}, 8);
  ASSERT_NE(rig, nullptr);
  ASSERT_THAT(rig->Stage(1), IsOk());
  ASSERT_THAT(rig->Prepare(), IsOk());
  rig->receiver()->transport->on_arrival = [&](int before) {
    if (before == 1) rig->receiver()->receiver->Finish(rig->attempt());
  };
  EXPECT_THAT(rig->Transfer()[0], HasReason("CANCELLED"));
  rig->receiver()->transport->on_arrival = nullptr;
  rig->Finish();
  ASSERT_THAT(rig->Sync(), IsOk());
  rig->ExpectServes(0, 1);
}

TEST_P(IpcGpuTest, ADeadlineThatPassesEndsTheTransfer) {
  std::unique_ptr<GpuRig> rig = Make({"whole", 2, "whole:1"});
  ASSERT_NE(rig, nullptr);
  ASSERT_THAT(rig->Stage(1), IsOk());
  ASSERT_THAT(rig->Prepare({}, absl::Milliseconds(300)), IsOk());
  // The second replica waits for the first one, which receives nothing.
  EXPECT_THAT(rig->receiver(1)->receiver->Transfer(rig->Command()).status(), HasReason("DEADLINE"));
  rig->Finish();
  ASSERT_THAT(rig->Sync(), IsOk());
  rig->ExpectServes(1, 1);
}

TEST_P(IpcGpuTest, AFlippedBitInTheSendArenaIsCaughtBeforeTheInstall) {
  std::unique_ptr<GpuRig> rig = Make({"flat:2", 2, "whole:1"});
  ASSERT_NE(rig, nullptr);
  ASSERT_THAT(rig->Stage(1), IsOk());
  ASSERT_THAT(rig->Sync(), IsOk());
  ASSERT_THAT(rig->Stage(2), IsOk());
  {
    auto reader = rig->source(1)->arena->OpenOnDevice({1, 2});
    ASSERT_THAT(reader.status(), IsOk());
    const int device = rig->source(1)->device;
    char* byte = (*reader)->arena().data() + rig->plan().send_bytes(1) / 2;
    std::vector<char> flipped = ToHost(device, byte, 1);
    flipped[0] ^= 1;
    ToDevice(device, byte, flipped.data(), 1);
  }
  ASSERT_THAT(rig->Prepare(), IsOk());
  EXPECT_THAT(rig->Transfer(), Each(HasReason("DIGEST_MISMATCH")));
  rig->Finish();
  EXPECT_EQ(rig->receiver(0)->target->serving(), (PolicyVersion{1, 1}));
}

TEST_P(IpcGpuTest, TwoHundredSyncsTakeNoMoreMemoryThanTwenty) {
  std::unique_ptr<GpuRig> rig = Make({"flat:2", 3, "whole:1"});
  ASSERT_NE(rig, nullptr);
  int64_t free_after_twenty = 0;
  for (int64_t step = 1; step <= 200; ++step) {
    ASSERT_THAT(rig->Stage(step), IsOk());
    ASSERT_THAT(rig->Sync(), IsOk());
    if (step == 20) free_after_twenty = cuda::ReadGpuMemory(0)->free;
  }
  EXPECT_GE(cuda::ReadGpuMemory(0)->free, free_after_twenty - (4 << 20));
}

INSTANTIATE_TEST_SUITE_P(OneGpu, IpcGpuTest, ::testing::Values(1));
INSTANTIATE_TEST_SUITE_P(TwoGpus, IpcGpuTest, ::testing::Values(2));
INSTANTIATE_TEST_SUITE_P(FourGpus, IpcGpuTest, ::testing::Values(4));

}  // namespace
}  // namespace syncopate::synchronizer
