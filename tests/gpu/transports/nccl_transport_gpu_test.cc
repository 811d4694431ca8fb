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
using ::testing::AnyOf;
using ::testing::Each;

struct Shape {
  int gpus;
  const char* source_layout;
  int replicas;
  const char* destination_layout;
};

class NcclGpuTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (int device = 0; device < std::min(4, cuda::GpuCount()); ++device)
      EXPECT_THAT(bench::CheckContext(device), IsOk());
  }
  std::unique_ptr<GpuRig> Make(const Shape& shape, int64_t width = 1) {
    GpuRig::Options options;
    options.transport = "nccl";
    options.source_layout = shape.source_layout;
    options.replicas = shape.replicas;
    options.destination_layout = shape.destination_layout;
    options.gpus = shape.gpus;
    options.manifest = GpuTestModel(width);
    absl::StatusOr<std::unique_ptr<GpuRig>> rig = GpuRig::Create(std::move(options));
    EXPECT_THAT(rig.status(), IsOk());
    return rig.ok() ? *std::move(rig) : nullptr;
  }
  // Runs three syncs; only the first one forms communicators.
  void ExpectSyncs(const Shape& shape, int64_t width = 1) {
    std::unique_ptr<GpuRig> rig = Make(shape, width);
    ASSERT_NE(rig, nullptr);
    for (int64_t step : {1, 2, 3}) {
      ASSERT_THAT(rig->Stage(step), IsOk());
      ASSERT_THAT(rig->Sync(), IsOk());
      EXPECT_THAT(rig->SourceStatuses(), Each(IsOk()));
      for (int i = 0; i < rig->receivers(); ++i) rig->ExpectServes(i, step);
      if (step > 1) {
        EXPECT_LT(rig->receiver()->received.connect_seconds, 0.02);
      }
    }
  }
};

TEST_F(NcclGpuTest, BringsEveryBitFromOneSourceToOneReplica) {
  SYNCOPATE_NEED_GPUS(2);
  ExpectSyncs({2, "whole", 1, "whole:1"});
}

TEST_F(NcclGpuTest, BringsEveryBitFromTwoShardsToTwoReplicas) {
  SYNCOPATE_NEED_GPUS(4);
  ExpectSyncs({4, "flat:2:fp32", 2, "whole:1"});
}

TEST_F(NcclGpuTest, BroadcastsToMoreReplicasThanSources) {
  SYNCOPATE_NEED_GPUS(3);
  ExpectSyncs({3, "whole", 2, "whole:1"});
}

TEST_F(NcclGpuTest, BroadcastsToThreeReplicas) {
  SYNCOPATE_NEED_GPUS(4);
  ExpectSyncs({4, "whole", 3, "whole:1"});
}

TEST_F(NcclGpuTest, BringsEverySliceOfATensorParallelReplica) {
  SYNCOPATE_NEED_GPUS(4);
  ExpectSyncs({4, "fsdp2:2", 1, "tp:2"});
}

TEST_F(NcclGpuTest, GathersThreeShards) {
  SYNCOPATE_NEED_GPUS(4);
  ExpectSyncs({4, "layers:3", 1, "whole:1"});
}

TEST_F(NcclGpuTest, BringsAGigabyteInRounds) {
  SYNCOPATE_NEED_GPUS(2);
  ExpectSyncs({2, "whole", 1, "whole:1"}, 40);
}

TEST_F(NcclGpuTest, AGroupWithoutOneOfItsMembersIsFormedAnew) {
  SYNCOPATE_NEED_GPUS(3);
  std::unique_ptr<GpuRig> rig = Make({3, "whole", 2, "whole:1"});
  ASSERT_NE(rig, nullptr);
  ASSERT_THAT(rig->Stage(1), IsOk());
  ASSERT_THAT(rig->Sync({0}), IsOk());
  ASSERT_THAT(rig->Sync({1}), IsOk());
  ASSERT_THAT(rig->Stage(2), IsOk());
  ASSERT_THAT(rig->Sync(), IsOk());
  ASSERT_THAT(rig->Stage(3), IsOk());
  ASSERT_THAT(rig->Sync({1}), IsOk());
  rig->ExpectServes(1, 3);
}

TEST_F(NcclGpuTest, AMemberThatNeverJoinsCostsTheDeadlineAndNothingElse) {
  SYNCOPATE_NEED_GPUS(2);
  std::unique_ptr<GpuRig> rig = Make({2, "whole", 1, "whole:1"});
  ASSERT_NE(rig, nullptr);
  ASSERT_THAT(rig->Stage(1), IsOk());
  ASSERT_THAT(rig->Prepare({}, absl::Seconds(1)), IsOk());
  const absl::Time begun = Clock::Real()->Now();
  rig->StartSources();  // the receiver does not join
  EXPECT_THAT(rig->SourceStatuses(), Each(HasReason("DEADLINE")));
  EXPECT_LT(Clock::Real()->Now() - begun, absl::Seconds(2.6)) << "the deadline and an abort";
  rig->Finish();
  ASSERT_THAT(rig->Sync(), IsOk());
  rig->ExpectServes(0, 1);
}

TEST_F(NcclGpuTest, AMemberThatLeavesInTheMiddleIsAbortedByAllAndTheNextAttemptWorks) {
  SYNCOPATE_NEED_GPUS(2);
  std::unique_ptr<GpuRig> rig = Make({2, "whole", 1, "whole:1"}, 40);
  ASSERT_NE(rig, nullptr);
  ASSERT_THAT(rig->Stage(1), IsOk());
  ASSERT_THAT(rig->Sync(), IsOk());
  ASSERT_THAT(rig->Stage(2), IsOk());
  ASSERT_THAT(rig->Prepare(), IsOk());
  absl::Time left;
  rig->receiver()->transport->on_arrival = [&](int before) {
    if (before != 0) return;
    left = Clock::Real()->Now();
    rig->Finish();
  };
  EXPECT_THAT(rig->Transfer()[0], HasReason("CANCELLED"));
  EXPECT_THAT(rig->SourceStatuses(), Each(AnyOf(IsOk(), HasReason("CLOSED"))));
  EXPECT_LT(Clock::Real()->Now() - left, absl::Seconds(1.5)) << "an abort on both ends";
  rig->receiver()->transport->on_arrival = nullptr;
  EXPECT_EQ(rig->receiver()->target->serving(), (PolicyVersion{1, 1}));
  absl::Status synced = rig->Sync();
  if (!synced.ok()) {  // the source may have finished before: then the first attempt finds that the group is lost
    EXPECT_THAT(synced, HasReason("GROUP_LOST"));
    synced = rig->Sync();
  }
  ASSERT_THAT(synced, IsOk());
  rig->ExpectServes(0, 2);
}

TEST_F(NcclGpuTest, AFlippedBitInTheSendArenaIsCaughtBeforeTheInstall) {
  SYNCOPATE_NEED_GPUS(2);
  std::unique_ptr<GpuRig> rig = Make({2, "whole", 1, "whole:1"});
  ASSERT_NE(rig, nullptr);
  ASSERT_THAT(rig->Stage(1), IsOk());
  {
    auto reader = rig->source()->arena->OpenOnDevice({1, 1});
    ASSERT_THAT(reader.status(), IsOk());
    std::vector<char> byte = ToHost(0, (*reader)->arena().data(), 1);
    byte[0] ^= 1;
    ToDevice(0, (*reader)->arena().data(), byte.data(), 1);
  }
  EXPECT_THAT(rig->Sync(), HasReason("DIGEST_MISMATCH"));
  EXPECT_TRUE(rig->receiver()->target->serving().IsNone());
  ASSERT_THAT(rig->Stage(2), IsOk());
  EXPECT_THAT(rig->Sync(), IsOk());
}

TEST_F(NcclGpuTest, MembersOnOneGpuAreRefusedBeforeACommunicatorExists) {
  SYNCOPATE_NEED_GPUS(1);
  std::unique_ptr<GpuRig> rig = Make({1, "whole", 1, "whole:1"});
  ASSERT_NE(rig, nullptr);
  ASSERT_THAT(rig->Stage(1), IsOk());
  EXPECT_THAT(rig->Sync(), HasReason("DUPLICATE_GPU"));
}

TEST_F(NcclGpuTest, FiftySyncsAndRegroupingsTakeNoMoreMemoryThanTen) {
  SYNCOPATE_NEED_GPUS(3);
  std::unique_ptr<GpuRig> rig = Make({3, "whole", 2, "whole:1"});
  ASSERT_NE(rig, nullptr);
  int64_t free_after_ten = 0;
  for (int64_t step = 1; step <= 50; ++step) {
    ASSERT_THAT(rig->Stage(step), IsOk());
    std::vector<int> members = step % 3 == 0 ? std::vector<int>{} : std::vector<int>{static_cast<int>(step % 3) - 1};
    ASSERT_THAT(rig->Sync(members), IsOk());
    if (step == 10) free_after_ten = cuda::ReadGpuMemory(0)->free;
  }
  // There may be one group more or less at this moment.
  EXPECT_GE(cuda::ReadGpuMemory(0)->free, free_after_ten - (600 << 20));
}

}  // namespace
}  // namespace syncopate::synchronizer
