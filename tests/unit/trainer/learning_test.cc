#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "services/config/run_config.h"
#include "tools/twin/synchronous_loop.h"
#include "trainer/data/learning_alarms.h"

namespace syncopate::trainerd {
namespace {

v1::RunConfig ReverseConfig(int seed) {
  config::ParsedRunConfig parsed = config::ParseRunConfig("", "defaults", {absl::StrCat("run.seed=", seed)});
  EXPECT_TRUE(parsed.problems.empty());
  return parsed.config;
}

trainer::LearningAlarms::Step Figures(const trainer::TrainStepMetrics& metrics) {
  return {metrics.reward_mean, metrics.reward_max, metrics.entropy, metrics.zero_variance_fraction};
}

class LearningTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, LearningTest, ::testing::Values(0, 1, 2));

TEST_P(LearningTest, ReverseIsLearnedFromNothingWithinAHundredSteps) {
  auto loop = twin::SynchronousLoop::Create(ReverseConfig(GetParam()));
  ASSERT_TRUE(loop.ok()) << loop.status();
  double best = (*loop)->EvaluateExact().value();
  EXPECT_LT(best, 0.1);  // it starts from nothing
  trainer::LearningAlarms alarms;
  while ((*loop)->step() < 100 && best < 0.95) {
    auto step = (*loop)->Step();
    ASSERT_TRUE(step.ok());
    alarms.AddStep(Figures(step->metrics));
    EXPECT_THAT(alarms.Standing(), ::testing::IsEmpty()) << "at step " << step->step;
    if ((*loop)->step() % 10 == 0) best = std::max(best, (*loop)->EvaluateExact().value());
  }
  EXPECT_GE(best, 0.95);
}

TEST(LearningAlarmsRunTest, AdditionCollapsesAndBothAlarmsSaySo) {
  config::ParsedRunConfig parsed = config::ParseRunConfig(
      "", "defaults", {"data.task=add", "data.length=2", "data.batch_groups=8", "rollout.samples=8"});
  ASSERT_TRUE(parsed.problems.empty());
  auto loop = twin::SynchronousLoop::Create(parsed.config);
  ASSERT_TRUE(loop.ok()) << loop.status();
  trainer::LearningAlarms alarms;
  const std::vector<std::string> both = {"entropy", "no_signal"};
  while ((*loop)->step() < 250 && alarms.Standing() != both) {
    auto step = (*loop)->Step();
    ASSERT_TRUE(step.ok());
    alarms.AddStep(Figures(step->metrics));
    if (step->step > 60) continue;
    EXPECT_THAT(alarms.Standing(), ::testing::IsEmpty()) << "at step " << step->step;
  }
  EXPECT_EQ(alarms.Standing(), both);
}

TEST(SynchronousLoopTest, TwoRunsGiveTheSameBitsAndAnotherSeedDoesNot) {
  auto first = twin::SynchronousLoop::Create(ReverseConfig(0)).value();
  auto second = twin::SynchronousLoop::Create(ReverseConfig(0)).value();
  auto other = twin::SynchronousLoop::Create(ReverseConfig(1)).value();
  for (int i = 0; i < 3; ++i) {
    const uint64_t digest = first->Step().value().weights_digest;
    EXPECT_EQ(second->Step().value().weights_digest, digest);
    EXPECT_NE(other->Step().value().weights_digest, digest);
  }
}

}  // namespace
}  // namespace syncopate::trainerd
