#include "trainer/loop/flow_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncopate::trainer {
namespace {

TEST(FlowSumsTest, AnIncarnationAddsToThoseBeforeAndARollouterThatStayedCountsOnce) {
  FlowSums before{.wall_seconds = 60,
                  .figures = {.step_seconds = 8, .wait_seconds = 2},
                  .reissued = 3,
                  .invalid = {{"BAD_LOGPROB", 7}}};
  before.figures.AddEvaluation(0.95, 0.9);
  before.figures.AddEvaluation(0.85, 0.8);
  before.roster.AddProcess({"rollouter", "rollouter-0", 0, 1, "a"});
  before.roster.SetWork("a", {.generated_tokens = 500, .groups_submitted = 9, .busy_seconds = 1, .idle_seconds = 3});
  RolloutRoster roster = before.roster;
  roster.AddProcess({"rollouter", "rollouter-0", 0, 1, "a"});  // the process has outlived the trainer
  roster.SetWork("a", {.generated_tokens = 700});
  TrainingData::Status data;
  data.groups = {.reissued = 1, .superseded = 2, .failed_attempts = 1, .duplicate = 1, .expired = 1};
  data.leases.invalid = {{"BAD_LOGPROB", 1}, {"BAD_MESSAGE", 2}};
  RunFigures life{.step_seconds = 2, .wait_seconds = 1};
  life.AddEvaluation(0.75, 0.7);
  before.figures.evaluations_lost = 1;
  life.evaluations_lost = 4;
  const FlowSums sums = AddLife(before, 5, life, data, roster);
  EXPECT_EQ(sums.wall_seconds, 65);
  EXPECT_EQ(sums.figures.step_seconds, 10);
  EXPECT_EQ(sums.figures.best_reward, 0.95);
  EXPECT_EQ(sums.figures.last_reward, 0.75);
  EXPECT_EQ(sums.figures.best_exact, 0.9);
  EXPECT_EQ(sums.figures.last_exact, 0.7);
  EXPECT_EQ(sums.reissued, 4);
  EXPECT_EQ(sums.superseded, 2);
  EXPECT_EQ(sums.failed_attempts, 1);
  EXPECT_EQ(sums.figures.evaluations_made, 3);
  EXPECT_EQ(sums.figures.evaluations_lost, 5);
  EXPECT_EQ(sums.invalid, (std::map<std::string, int64_t>{{"BAD_LOGPROB", 8}, {"BAD_MESSAGE", 2}}));
  ASSERT_EQ(sums.roster.entries().size(), 1u);
  EXPECT_EQ(sums.roster.entries()[0].work.generated_tokens, 700);
}

TEST(FlowSumsTest, TheBestHeldOutLossIsTheSmallestOfAllIncarnations) {
  FlowSums before;
  before.figures.AddHeldOut(0.5);
  before.figures.AddHeldOut(0.75);
  EXPECT_EQ(AddLife(before, 1, {}, {}, {}).figures.last_held_out_loss, 0.75);
  RunFigures life;
  life.AddHeldOut(0.6);
  life.AddHeldOut(0.7);
  const FlowSums sums = AddLife(before, 1, life, {}, {});
  EXPECT_EQ(sums.figures.best_held_out_loss, 0.5);
  EXPECT_EQ(sums.figures.last_held_out_loss, 0.7);
}

TEST(FlowSumsTest, EvaluationsWithoutKnownAnswersHaveARewardAlone) {
  RunFigures life;
  life.AddEvaluation(0.5, std::nullopt);
  const FlowSums sums = AddLife({}, 1, life, {}, {});
  EXPECT_EQ(sums.figures.last_reward, 0.5);
  EXPECT_FALSE(sums.figures.best_exact.has_value());
  EXPECT_FALSE(sums.figures.last_exact.has_value());
}

TEST(FlowSumsTest, AnIncarnationWithoutAnEvaluationLeavesTheFiguresOfThoseBefore) {
  FlowSums before;
  before.figures.AddEvaluation(0.5, 0.25);
  const FlowSums sums = AddLife(before, 1, {}, {}, {});
  EXPECT_EQ(sums.figures.last_reward, 0.5);
  EXPECT_EQ(sums.figures.last_exact, 0.25);
}

}  // namespace
}  // namespace syncopate::trainer
