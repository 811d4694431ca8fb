#include "bench/fleet/fleet_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/sync/bench_model.h"
#include "tests/support/status_matchers.h"

namespace syncopate::bench {
namespace {

FleetCase Fleet(int32_t ranks, int32_t replicas, int32_t tensor_parallel, const std::string& transport) {
  static const auto* const manifest = new Manifest(*BenchManifest("tiny"));
  return {.manifest = *manifest,
          .trainer_ranks = ranks,
          .replicas = replicas,
          .tensor_parallel = tensor_parallel,
          .transport = transport};
}

class FleetWorldTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, FleetWorldTest, ::testing::Values("grpc", "nccl"));

TEST_P(FleetWorldTest, EveryReplicaServesAndEachMemberHearsOfEachStageOnce) {
  for (const auto& [ranks, replicas, tensor_parallel] : {std::tuple(1, 1, 1), {2, 3, 2}, {8, 64, 1}, {3, 40, 2}}) {
    const FleetCase fleet = Fleet(ranks, replicas, tensor_parallel, GetParam());
    const absl::StatusOr<FleetFigures> figures = FleetWorld::Measure(fleet);
    ASSERT_THAT(figures, testing::IsOk());
    EXPECT_EQ(figures->served, replicas);
    // The commands are Directory, Prepare, Transfer and Finish for all members, and Install for receivers; members
    // report each of the middle commands.
    const int64_t members = fleet.members(), receivers = fleet.receivers();
    EXPECT_EQ(figures->commands, 4 * members + receivers) << ranks << " x " << replicas << " x " << tensor_parallel;
    EXPECT_EQ(figures->reports, 2 * members + receivers) << ranks << " x " << replicas << " x " << tensor_parallel;
  }
}

TEST(FleetWorldTest, ThePlanDoesNotDependOnTheNumberOfReplicas) {
  const FleetFigures few = *FleetWorld::Measure(Fleet(8, 2, 2, "grpc"));
  const FleetFigures many = *FleetWorld::Measure(Fleet(8, 300, 2, "grpc"));
  EXPECT_EQ(few.plan_copies, many.plan_copies);
  EXPECT_EQ(few.plan_buckets, many.plan_buckets);
}

// With grpc, a receiver connects to the sources alone; sources learn of every receiver. In an NCCL group every member
// meets every other member, so the size of a sync's messages grows with the square of the replicas.
TEST(FleetWorldTest, WhatIsSaidGrowsWithTheMembersOverGrpcAndWithTheirSquareOverNccl) {
  const auto bytes = [](int32_t replicas, const char* transport) {
    return static_cast<double>(FleetWorld::Measure(Fleet(2, replicas, 1, transport))->command_bytes);
  };
  EXPECT_LT(bytes(400, "grpc") / bytes(100, "grpc"), 4.4);
  EXPECT_GT(bytes(400, "nccl") / bytes(100, "nccl"), 12);
  const FleetFigures grpc = *FleetWorld::Measure(Fleet(2, 400, 1, "grpc"));
  EXPECT_LT(grpc.heap_bytes / 402, 32 << 10) << "a member's state";
}

TEST(FleetWorldTest, WhatCannotBeIsRefused) {
  EXPECT_THAT(FleetWorld::Measure(Fleet(0, 1, 1, "grpc")), testing::HasReason("BAD_CASE"));
  EXPECT_THAT(FleetWorld::Measure(Fleet(1, 1, 1, "ipc")), testing::HasReason("BAD_CASE"));
}

}  // namespace
}  // namespace syncopate::bench
