#include "trainer/data/learning_alarms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncopate::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

LearningAlarms::Step Step(double reward_mean, double entropy, double zero_variance) {
  return {.reward_mean = reward_mean, .reward_max = 1, .entropy = entropy, .zero_variance = zero_variance};
}

void Repeat(LearningAlarms* alarms, int times, const LearningAlarms::Step& step) {
  for (int i = 0; i < times; ++i) alarms->AddStep(step);
}

TEST(LearningAlarmsTest, ARunThatHasCollapsedHasNeitherEntropyNorSignal) {
  LearningAlarms alarms;
  Repeat(&alarms, 10, Step(0.1, 2.0, 0.1));
  EXPECT_THAT(alarms.Standing(), IsEmpty());
  Repeat(&alarms, 20, Step(0.5, 0.15, 0.95));
  EXPECT_THAT(alarms.Standing(), ElementsAre("entropy", "no_signal"));
}

TEST(LearningAlarmsTest, ARunThatHasSolvedItsTaskHasNoAlarmForTheSameFigures) {
  LearningAlarms alarms;
  Repeat(&alarms, 10, Step(0.1, 2.0, 0.1));
  Repeat(&alarms, 20, Step(0.95, 0.001, 1.0));
  EXPECT_THAT(alarms.Standing(), IsEmpty());
}

TEST(LearningAlarmsTest, SolvedIsMeasuredByTheBestSampleThereEverWas) {
  LearningAlarms alarms;
  LearningAlarms::Step lucky = Step(0.1, 2.0, 0.1);
  lucky.reward_max = 10;
  alarms.AddStep(lucky);
  Repeat(&alarms, 40, Step(0.95, 0.001, 1.0));
  EXPECT_THAT(alarms.Standing(), ElementsAre("entropy", "no_signal"));
}

TEST(LearningAlarmsTest, EachAlarmStandsByItself) {
  LearningAlarms entropy, signal;
  for (LearningAlarms* alarms : {&entropy, &signal}) Repeat(alarms, 10, Step(0.1, 2.0, 0.1));
  Repeat(&entropy, 20, Step(0.5, 0.1, 0.5));
  Repeat(&signal, 20, Step(0.5, 1.0, 0.95));
  EXPECT_THAT(entropy.Standing(), ElementsAre("entropy"));
  EXPECT_THAT(signal.Standing(), ElementsAre("no_signal"));
}

TEST(LearningAlarmsTest, NothingIsSaidBeforeThereAreTwentySteps) {
  LearningAlarms alarms;
  Repeat(&alarms, 19, Step(0.1, 2.0, 1.0));
  EXPECT_THAT(alarms.Standing(), IsEmpty());
  alarms.AddStep(Step(0.1, 2.0, 1.0));
  EXPECT_THAT(alarms.Standing(), ElementsAre("no_signal"));
}

TEST(LearningAlarmsTest, AnAlarmIsOverWhenTheFiguresAreAsBefore) {
  LearningAlarms alarms;
  Repeat(&alarms, 30, Step(0.1, 2.0, 1.0));
  Repeat(&alarms, 5, Step(0.1, 2.0, 0.1));
  EXPECT_THAT(alarms.Standing(), IsEmpty());
}

TEST(LearningAlarmsTest, AnEvaluationFarBelowTheBestOneIsAFall) {
  LearningAlarms alarms;
  alarms.AddStep(Step(0.5, 1.0, 0.1));
  for (double reward : {0.2, 0.8, 1.0, 0.91}) {
    alarms.AddEvaluation(reward);
    EXPECT_THAT(alarms.Standing(), IsEmpty()) << reward;
  }
  alarms.AddEvaluation(0.89);
  EXPECT_THAT(alarms.Standing(), ElementsAre("evaluation_fell"));
  alarms.AddEvaluation(0.95);
  EXPECT_THAT(alarms.Standing(), IsEmpty());
  EXPECT_EQ(alarms.best_evaluation(), 1.0);
}

TEST(LearningAlarmsTest, ABestEvaluationOfAnEarlierIncarnationCounts) {
  LearningAlarms alarms;
  alarms.SetBestEvaluation(1.0);
  alarms.AddStep(Step(0.5, 1.0, 0.1));
  EXPECT_THAT(alarms.Standing(), IsEmpty());
  alarms.AddEvaluation(0.5);
  EXPECT_THAT(alarms.Standing(), ElementsAre("evaluation_fell"));
}

TEST(LearningAlarmsTest, RewardsThatAreNeverPositiveAreNeverSolved) {
  LearningAlarms alarms;
  Repeat(&alarms, 30, {.reward_mean = -1, .reward_max = -1, .entropy = 1, .zero_variance = 1});
  EXPECT_THAT(alarms.Standing(), ElementsAre("no_signal"));
}

}  // namespace
}  // namespace syncopate::trainer
