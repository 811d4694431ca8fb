#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shape_rig.h"
#include "tests/support/synchronizer_fixtures.h"
#include "tests/support/transport_harness.h"

// The tests that every transport must pass between any number of sources and receivers, over any memory that it can
// access. See transport_conformance.h.
namespace syncopate::synchronizer {

class TransportShapesTest : public ::testing::TestWithParam<HarnessFactory> {
 protected:
  // A factory returns null where the machine lacks what the harness needs.
  void SetUp() override {
    if (harness_ == nullptr) GTEST_SKIP() << "there is no GPU";
  }

  std::unique_ptr<TransportHarness> harness_ = GetParam()();
};

TEST_P(TransportShapesTest, BringsEveryBitInEveryShapeThreeTimesInARow) {
  int whole = 0;
  for (const SyncShape& shape : std::vector<SyncShape>{
           {"buckets:1", 1, "whole:1", 1, 1},
           {"buckets:1", 1, "whole:1", 1, 3},
           {"units:2:fp32", 2, "whole:1", 1, 1},
           {"flat:2:fp32", 2, "whole:1", 1, 2, DType::kFloat32},
           {"units:3:bf16", 3, "whole:1", 1, 2},
           {"fsdp2:2:fp32", 2, "tp:2", 2, 2},
           {"replicated:2:bf16", 2, "tp:2:fused", 2, 1},
           {"fsdp2:1:fp32", 1, "tp:4", 4, 2},
       }) {
    SCOPED_TRACE(absl::StrCat(shape.source_layout, " to ", shape.replicas, " x ", shape.destination_layout));
    std::unique_ptr<TransportHarness> harness = GetParam()();
    ShapeRig rig(harness.get(), shape);
    if (!rig.complete()) continue;  // this harness has too few places
    ++whole;
    std::vector<int> all;
    for (int i = 0; i < shape.replicas; ++i) all.push_back(i);
    for (int64_t step : {1, 2, 3}) {
      rig.Stage(step);
      for (const auto& [replica, status] : rig.Sync(all)) ASSERT_TRUE(status.ok()) << status;
      for (int replica : all) rig.ExpectServes(replica, step);
    }
  }
  if (whole == 0) GTEST_SKIP() << "this harness has too few places";
}

TEST_P(TransportShapesTest, ALateJoinerOfManyRanksAndAReplicaThatRefusesDisturbNobody) {
  ShapeRig rig(harness_.get(), {"flat:2:fp32", 2, "tp:2", 2, 1});
  const int late = rig.AddReplica("tp:2");
  const int misfit = rig.AddReplica("tp:2:fused");
  if (!rig.complete()) GTEST_SKIP() << "this harness has too few places";
  rig.Stage(1);
  std::map<int, absl::Status> statuses = rig.Sync({0, misfit});
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
  EXPECT_THAT(statuses[misfit], HasReason("LAYOUT_MISMATCH"));
  ASSERT_TRUE(rig.Sync({late})[late].ok());
  rig.ExpectServes(late, 1);
  rig.ExpectServes(0, 1);
  rig.Stage(2);
  statuses = rig.Sync({0, late});
  EXPECT_TRUE(statuses[0].ok() && statuses[late].ok());
  rig.ExpectServes(0, 2);
  rig.ExpectServes(late, 2);
}

TEST_P(TransportShapesTest, ARehearsalMovesNothingAndTheNextSyncMovesEverything) {
  ShapeRig rig(harness_.get(), {"fsdp2:1:fp32", 1, "whole:1", 1, 1});
  if (!rig.complete()) GTEST_SKIP() << "this harness has too few places";
  for (const absl::Status& status : rig.Rehearse({0})) ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(rig.serving(0).IsNone());
  for (int64_t step : {1, 2}) {
    rig.Stage(step);
    ASSERT_TRUE(rig.Sync({0})[0].ok());
    rig.ExpectServes(0, step);
    for (const absl::Status& status : rig.Rehearse({0})) ASSERT_TRUE(status.ok()) << status;
    rig.ExpectServes(0, step);
  }
}

TEST_P(TransportShapesTest, ASourceThatDiesLeavesTheOldVersionServing) {
  ShapeRig rig(harness_.get(), {"fsdp2:1:fp32", 1, "whole:1", 1, 1});
  if (!rig.complete()) GTEST_SKIP() << "this harness has too few places";
  rig.Stage(1);
  ASSERT_TRUE(rig.Sync({0})[0].ok());
  rig.Stage(2);
  const absl::Status status = rig.SyncFromTheDead(0, absl::Seconds(1));
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  rig.ExpectServes(0, 1);
}

TEST_P(TransportShapesTest, AVersionThatIsGoneIsNotServed) {
  ShapeRig rig(harness_.get(), {"fsdp2:1:fp32", 1, "whole:1", 1, 1});
  if (!rig.complete()) GTEST_SKIP() << "this harness has too few places";
  rig.Stage(1);
  ASSERT_TRUE(rig.Sync({0})[0].ok());
  for (int64_t step : {2, 3, 4}) rig.Stage(step);  // more versions than there are slots
  rig.Offer(2);
  EXPECT_FALSE(rig.Sync({0})[0].ok());
  rig.ExpectServes(0, 1);
  rig.Offer(4);
  ASSERT_TRUE(rig.Sync({0})[0].ok());
  rig.ExpectServes(0, 4);
}

}  // namespace syncopate::synchronizer
