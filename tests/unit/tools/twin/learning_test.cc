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

trainer::LearningAlarms::Step Figures(const trainer::StepFigures& metrics) {
  return {metrics.reward_mean, metrics.reward_max, metrics.entropy, metrics.zero_variance_ratio};
}

class LearningTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, LearningTest, ::testing::Values(0, 1, 2));

TEST_P(LearningTest, ReverseIsLearnedFromNothingWithinAHundredSteps) {
  auto loop = twin::SynchronousLoop::Create(ReverseConfig(GetParam()));
  ASSERT_TRUE(loop.ok()) << loop.status();
  double best = (*loop)->EvaluateExact().value().value();
  EXPECT_LT(best, 0.1);  // training starts from random weights
  trainer::LearningAlarms alarms;
  while ((*loop)->step() < 100 && best < 0.95) {
    auto step = (*loop)->Step();
    ASSERT_TRUE(step.ok());
    alarms.AddStep(Figures(step->metrics));
    EXPECT_THAT(alarms.Standing(), ::testing::IsEmpty()) << "at step " << step->step;
    if ((*loop)->step() % 10 == 0) best = std::max(best, (*loop)->EvaluateExact().value().value());
  }
  EXPECT_GE(best, 0.95);
}

v1::RunConfig ExampleConfig(const std::string& name) {
  auto config = config::LoadRunConfig(SYNCOPATE_SOURCE_DIR "/deploy/examples/" + name);
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

// Algorithms by their keys, from random weights. A unit test of a formula does not detect a wrong sign elsewhere.
struct Recipe {
  const char* name;
  std::vector<std::string> keys;
};

class RecipeTest : public ::testing::TestWithParam<Recipe> {};
INSTANTIATE_TEST_SUITE_P(Recipes, RecipeTest,
                         ::testing::Values(Recipe{"batch_std_cispo_prompt_mean",
                                                  {"train.advantage=batch_std", "train.policy_loss=cispo",
                                                   "train.clip_low=1", "train.clip_high=4",
                                                   "train.aggregation=prompt_mean"}},
                                           Recipe{"reinforce_pp_dppo",
                                                  {"train.advantage=reinforce_pp", "train.policy_loss=dppo",
                                                   "train.correction=none", "train.kl_tau=1e-3"}},
                                           Recipe{"rloo_sapo_a3po_two_updates",
                                                  {"train.advantage=rloo", "train.policy_loss=sapo",
                                                   "train.proximal=a3po", "train.updates_per_batch=2"}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(RecipeTest, ReverseIsLearnedFromNothing) {
  config::ParsedRunConfig parsed = config::ParseRunConfig("", "defaults", GetParam().keys);
  ASSERT_TRUE(parsed.problems.empty());
  auto loop = twin::SynchronousLoop::Create(parsed.config);
  ASSERT_TRUE(loop.ok()) << loop.status();
  double best = 0;
  while ((*loop)->step() < 120 && best < 0.95) {
    auto step = (*loop)->Step();
    ASSERT_TRUE(step.ok()) << step.status();
    if ((*loop)->step() % 10 == 0) best = std::max(best, (*loop)->EvaluateExact().value().value());
  }
  EXPECT_GE(best, 0.95);
}

TEST(ExamplesTest, EveryExampleOfAnAlgorithmLearnsWithinAHundredSteps) {
  for (const char* name : {"reverse-gspo.yaml", "reverse-reference.yaml"}) {
    auto loop = twin::SynchronousLoop::Create(ExampleConfig(name));
    ASSERT_TRUE(loop.ok()) << loop.status();
    double best = 0;
    while ((*loop)->step() < 100 && best < 0.95) {
      ASSERT_TRUE((*loop)->Step().ok());
      if ((*loop)->step() % 10 == 0) best = std::max(best, (*loop)->EvaluateExact().value().value());
    }
    EXPECT_GE(best, 0.95) << name;
  }
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
