#include "trainer/data/sizing.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/status.h"

namespace syncopate::trainer {
namespace {

// Groups that all take 10 s, batches of 4, steps of 1 s: 40 slots keep the trainer busy.
SizingInputs Even() {
  return {.gate = {.batch_groups = 4, .target_staleness = 20, .max_staleness = 40},
          .group_seconds = std::vector<double>(64, 10.0),
          .step_seconds = 1,
          .rollouters = 2,
          .slots = 16};
}

TEST(PredictStepRateTest, IsTheSlotsOverTheGroupTimeWhileTheTrainerWaits) {
  EXPECT_NEAR(PredictStepRate(Even(), 4), 0.1, 0.002);
  EXPECT_NEAR(PredictStepRate(Even(), 20), 0.5, 0.01);
}

TEST(PredictStepRateTest, IsThatOfTheTrainerWithAmpleSlots) {
  EXPECT_NEAR(PredictStepRate(Even(), 60), 1, 0.001);
  EXPECT_NEAR(PredictStepRate(Even(), 1000), 1, 0.001);
}

TEST(PredictStepRateTest, OnPolicyGroupsAndStepTakeTurns) {
  SizingInputs inputs = Even();
  inputs.gate.target_staleness = 0;
  inputs.gate.max_staleness = 0;
  EXPECT_NEAR(PredictStepRate(inputs, 100), 1.0 / 11, 1e-6);
  EXPECT_NEAR(PredictStepRate(inputs, 2), 1.0 / 21, 1e-6) << "four groups in two rounds";
}

// algorithms.md 2.2: a strict bound passes at most max_staleness + 1 steps in the time of the longest group.
TEST(PredictStepRateTest, TheBoundLimitsThePaceByTheLongestGroup) {
  SizingInputs inputs = Even();
  inputs.gate.target_staleness = 3;
  inputs.gate.max_staleness = 3;
  inputs.gate.on_deadline = OnDeadline::kStall;
  inputs.group_seconds.assign(64, 0.5);
  inputs.group_seconds.back() = 100;  // one of sixteen batches has it
  const double stalled = PredictStepRate(inputs, 100);
  EXPECT_LT(stalled, 0.25);
  inputs.gate.on_deadline = OnDeadline::kMask;
  EXPECT_GT(PredictStepRate(inputs, 100), 3 * stalled);
  inputs.gate.on_deadline = OnDeadline::kDrop;
  EXPECT_GT(PredictStepRate(inputs, 100), 3 * stalled);
}

TEST(PredictStepRateTest, GroupsThatAreReplacedTakeSlotsToo) {
  SizingInputs inputs = Even();
  inputs.kept_ratio = 0.5;
  EXPECT_NEAR(PredictStepRate(inputs, 20), 0.25, 0.005);
}

TEST(PredictStepRateTest, RolloutersThatLagSpendPartOfTheBound) {
  SizingInputs inputs = Even();
  inputs.gate.target_staleness = 4;
  inputs.gate.max_staleness = 4;
  const double fresh = PredictStepRate(inputs, 100);
  inputs.lag_steps = 2;
  EXPECT_LT(PredictStepRate(inputs, 100), 0.8 * fresh);
}

TEST(PredictStepRateTest, NothingComesOfNothing) {
  EXPECT_EQ(PredictStepRate(Even(), 0), 0);
  EXPECT_EQ(PredictStepRate({.step_seconds = 1}, 4), 0);
}

TEST(SizeRunTest, FewRolloutersAreTheLimitAndOneMoreGivesItsShare) {
  const SizingAdvice advice = *SizeRun(Even());
  EXPECT_EQ(advice.limit, RunLimit::kRollouters);
  EXPECT_NEAR(advice.steps_per_second, 0.4, 0.01);
  EXPECT_NEAR(advice.steps_per_second_one_more, 0.6, 0.02);
  EXPECT_NEAR(advice.steps_per_second_one_fewer, 0.2, 0.01);
  EXPECT_EQ(advice.steps_per_second_most, 1);
  EXPECT_EQ(advice.useful_rollouters, 5);
  EXPECT_NEAR(advice.trainer_idle_ratio, 0.6, 0.01);
}

TEST(SizeRunTest, ManyRolloutersLeaveTheTrainerAsTheLimit) {
  SizingInputs inputs = Even();
  inputs.rollouters = 7;
  inputs.slots = 56;
  const SizingAdvice advice = *SizeRun(inputs);
  EXPECT_EQ(advice.limit, RunLimit::kTrainer);
  EXPECT_NEAR(advice.steps_per_second_one_more, 1, 0.01);
  EXPECT_EQ(advice.useful_rollouters, 5);
}

TEST(SizeRunTest, ALowTargetIsTheLimitAndTheAdviceLiftsIt) {
  SizingInputs inputs = Even();
  inputs.rollouters = 7;
  inputs.slots = 56;
  inputs.gate.target_staleness = 2;
  const SizingAdvice advice = *SizeRun(inputs);
  EXPECT_EQ(advice.limit, RunLimit::kStaleness);
  EXPECT_LT(advice.steps_per_second, 0.5);
  EXPECT_EQ(advice.target_staleness, 10);
  EXPECT_EQ(advice.max_staleness, 10);
  EXPECT_GT(advice.advised_steps_per_second, 0.9);
  EXPECT_GE(advice.advised_rollouters, 5);
}

TEST(SizeRunTest, AMeasuredPaceScalesThePrediction) {
  SizingInputs inputs = Even();
  inputs.interval_seconds = 1 / 0.3;  // three quarters of what the gate alone would allow
  const SizingAdvice advice = *SizeRun(inputs);
  EXPECT_DOUBLE_EQ(advice.steps_per_second, 0.3);
  EXPECT_NEAR(advice.steps_per_second_one_more, 0.45, 0.02);
  EXPECT_NEAR(advice.steps_per_second_one_fewer, 0.15, 0.01);
}

TEST(SizeRunTest, SaysWhatIsNotMeasuredYet) {
  SizingInputs inputs = Even();
  inputs.rollouters = 0;
  EXPECT_EQ(ErrorReason(SizeRun(inputs).status()), "NOT_MEASURED");
  inputs = Even();
  inputs.group_seconds.resize(3);
  EXPECT_EQ(ErrorReason(SizeRun(inputs).status()), "NOT_MEASURED");
  inputs = Even();
  inputs.step_seconds = 0;
  EXPECT_EQ(ErrorReason(SizeRun(inputs).status()), "NOT_MEASURED");
}

}  // namespace
}  // namespace syncopate::trainer
