#include "trainer/data/staleness_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"

namespace syncopate::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

GroupId Group(int64_t ordinal) { return {0, ordinal}; }

TEST(StalenessGateTest, RefusesOptionsThatCannotWork) {
  EXPECT_TRUE((StalenessGate::Options{.batch_groups = 1, .target_staleness = 0, .max_staleness = 0}).Validate().ok());
  EXPECT_EQ(ErrorReason((StalenessGate::Options{.batch_groups = 0}).Validate()), "BAD_OPTIONS");
  EXPECT_EQ(ErrorReason((StalenessGate::Options{.max_staleness = -1}).Validate()), "BAD_OPTIONS");
  EXPECT_FALSE((StalenessGate::Options{.target_staleness = 2, .max_staleness = 1}).Validate().ok());
  EXPECT_FALSE((StalenessGate::Options{.target_staleness = -0.5, .max_staleness = 1}).Validate().ok());
}

TEST(StalenessGateTest, OnPolicyAdmitsOneBatchAndNothingWhileItIsTrained) {
  StalenessGate gate({.batch_groups = 2, .target_staleness = 0, .max_staleness = 0});
  for (int i : {0, 1}) {
    ASSERT_TRUE(gate.MayAdmit(0));
    gate.Admit(Group(i), 0);
  }
  EXPECT_FALSE(gate.MayAdmit(0));
  gate.Complete(Group(1));
  EXPECT_THAT(gate.Pick(), IsEmpty());
  gate.Complete(Group(0));
  EXPECT_THAT(gate.Pick(), ElementsAre(Group(0), Group(1)));
  gate.BeginStep(gate.Pick());
  EXPECT_FALSE(gate.MayAdmit(0));
  gate.EndStep();
  EXPECT_FALSE(gate.MayAdmit(0)) << "weights of step 0 would be one step old";
  EXPECT_TRUE(gate.MayAdmit(1));
}

TEST(StalenessGateTest, RefusesLeaseWhenTheDeadlineWouldBeMissed) {
  StalenessGate gate({.batch_groups = 1, .target_staleness = 2, .max_staleness = 2}, /*step=*/5);
  ASSERT_TRUE(gate.MayAdmit(3));
  gate.Admit(Group(0), 3);
  EXPECT_FALSE(gate.MayAdmit(3)) << "only one group can be taken at step 5";
  EXPECT_TRUE(gate.MayAdmit(4));
  EXPECT_FALSE(gate.MayAdmit(2)) << "overdue before it starts";
}

TEST(StalenessGateTest, WaitsForTheGroupWhoseDeadlineABatchWouldPass) {
  StalenessGate gate({.batch_groups = 1, .target_staleness = 1, .max_staleness = 1});
  gate.Admit(Group(0), 0);
  gate.Admit(Group(1), 0);
  gate.Complete(Group(1));
  EXPECT_THAT(gate.Pick(), ElementsAre(Group(1)));
  gate.BeginStep(gate.Pick());
  gate.EndStep();

  ASSERT_TRUE(gate.MayAdmit(1));
  gate.Admit(Group(2), 1);
  gate.Complete(Group(2));
  EXPECT_THAT(gate.Pick(), IsEmpty()) << "group 0 must be taken at step 1";
  EXPECT_EQ(gate.Blocker(), Group(0));
  EXPECT_EQ(gate.GetDeadline(Group(0)), 1);

  gate.Complete(Group(0));
  EXPECT_EQ(gate.Blocker(), std::nullopt);
  EXPECT_THAT(gate.Pick(), ElementsAre(Group(0)));
}

TEST(StalenessGateTest, WithMaskABatchWaitsForNoOlderGroupAndTheOldestAreTakenFirst) {
  StalenessGate gate({.batch_groups = 1, .target_staleness = 1, .max_staleness = 1, .on_deadline = OnDeadline::kMask});
  gate.Admit(Group(0), 0);
  gate.Admit(Group(1), 0);
  gate.Complete(Group(1));
  gate.BeginStep(gate.Pick());
  EXPECT_FALSE(gate.MayAdmit(0)) << "one batch is outstanding";
  gate.EndStep();
  gate.Admit(Group(2), 1);
  gate.Complete(Group(2));
  EXPECT_THAT(gate.Pick(), ElementsAre(Group(2))) << "group 0 runs on";
  EXPECT_EQ(gate.Blocker(), std::nullopt);
  EXPECT_EQ(gate.OldestStart(), 0);
  gate.BeginStep(gate.Pick());
  EXPECT_FALSE(gate.Fits(0)) << "its tokens would be two steps old at the next take";
  EXPECT_TRUE(gate.Fits(1));
  gate.EndStep();
  gate.Admit(Group(3), 2);
  gate.Complete(Group(3));
  gate.Complete(Group(0));
  EXPECT_THAT(gate.Pick(), ElementsAre(Group(0))) << "at any age";
  EXPECT_TRUE(gate.MayKeep(0));
  gate.Release(Group(0));
  EXPECT_EQ(gate.OldestStart(), 2);
}

TEST(StalenessGateTest, ReleasingTheBlockerUnblocksTheBatch) {
  StalenessGate gate({.batch_groups = 1, .target_staleness = 1, .max_staleness = 1}, 1);
  gate.Admit(Group(0), 0);
  gate.Admit(Group(1), 1);
  gate.Complete(Group(1));
  ASSERT_THAT(gate.Pick(), IsEmpty());
  gate.Release(Group(0));
  EXPECT_THAT(gate.Pick(), ElementsAre(Group(1)));
}

TEST(StalenessGateTest, TargetMayBeAFraction) {
  StalenessGate gate({.batch_groups = 4, .target_staleness = 0.5, .max_staleness = 4});
  int admitted = 0;
  for (; gate.MayAdmit(0); ++admitted) gate.Admit(Group(admitted), 0);
  EXPECT_EQ(admitted, 6);  // (0.5 + 1) * 4
}

TEST(StalenessGateTest, TakesEarliestDeadlineFirstAndLowestPromptAmongEquals) {
  StalenessGate gate({.batch_groups = 2, .target_staleness = 4, .max_staleness = 4}, 2);
  gate.Admit(Group(7), 2);
  gate.Admit(Group(9), 1);
  gate.Admit(Group(3), 2);
  for (int i : {7, 9, 3}) gate.Complete(Group(i));
  EXPECT_THAT(gate.Pick(), ElementsAre(Group(9), Group(3)));
}

TEST(StalenessGateTest, TakesAPartialBatchWhenAskedFor) {
  StalenessGate gate({.batch_groups = 4, .target_staleness = 1, .max_staleness = 1});
  gate.Admit(Group(0), 0);
  gate.Complete(Group(0));
  EXPECT_THAT(gate.Pick(), IsEmpty());
  EXPECT_THAT(gate.Pick(1), ElementsAre(Group(0)));
}

TEST(StalenessGateTest, StaysFastWithThousandsOutstanding) {
  StalenessGate gate({.batch_groups = 1024, .target_staleness = 8, .max_staleness = 16});
  int64_t next = 0;
  for (int step = 0; step < 40; ++step) {
    for (; gate.MayAdmit(step); ++next) {
      gate.Admit(Group(next), step);
      gate.Complete(Group(next));
    }
    gate.BeginStep(gate.Pick());
    gate.EndStep();
  }
  EXPECT_EQ(gate.outstanding(), 8 * 1024);
  EXPECT_EQ(next, 48 * 1024);
}

}  // namespace
}  // namespace syncopate::trainer
