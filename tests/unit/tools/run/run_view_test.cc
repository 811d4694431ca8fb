#include "tools/run/run_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncopate::run {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;

records::StepRecord Step(int64_t step, double reward) {
  records::StepRecord record;
  record.step = step;
  record.figures.reward_mean = reward;
  record.figures.trained_tokens = 1000;
  record.figures.step_seconds = 0.1;
  record.figures.wait_seconds = 0.025;
  return record;
}

records::StepRecord Evaluation(int64_t step, double exact) {
  records::StepRecord record;
  record.is_evaluation = true;
  record.step = step;
  record.eval_reward = exact + 0.01;
  record.eval_exact = exact;
  return record;
}

TEST(StepFiguresTest, WhatIsLeftTakesAsLongAsTheLastTwentySteps) {
  StepFigures figures;
  EXPECT_FALSE(figures.SecondsLeft(100).has_value());
  records::StepRecord slow = Step(1, 0);
  slow.figures.step_seconds = 100;
  figures.Add(slow);
  for (int64_t step = 2; step <= 21; ++step) figures.Add(Step(step, 0));
  EXPECT_DOUBLE_EQ(*figures.SecondsLeft(121), 10);
  EXPECT_DOUBLE_EQ(*figures.SecondsLeft(20), 0);
}

TEST(StepFiguresTest, RatesAreOfTheLastTwentySteps) {
  StepFigures figures;
  EXPECT_EQ(figures.TokensPerSecond(), 0);
  records::StepRecord slow = Step(1, 0);
  slow.figures.step_seconds = 100;
  figures.Add(slow);
  for (int64_t step = 2; step <= 21; ++step) figures.Add(Step(step, 0));
  EXPECT_DOUBLE_EQ(figures.TokensPerSecond(), 10000);
  EXPECT_DOUBLE_EQ(figures.Idle(), 0.25);
}

RunView Sample() {
  RunView view;
  view.name = "reverse";
  view.steps_total = 150;
  view.elapsed_seconds = 7;
  records::StepRecord step = Step(42, 0.8125);
  step.figures.entropy = 1.01;
  step.figures.gradient_norm = 0.5;
  step.figures.staleness_mean = 0.94;
  step.figures.staleness_max = 2;
  view.steps.Add(Evaluation(40, 0.91));
  step.figures.learning_rate = 2e-6;
  view.steps.Add(step);
  view.syncs = {84, 1, 0.0058, 0.0061, 0.0001};
  view.checkpoints.best = "e1-s40";
  view.checkpoints.best_reward = 0.92;
  view.waiting = "the trainer waits for groups on rollouter-1";
  view.daemons = {{"rollouter-0", "running", "e1-s42", 4242, 350, 40112.4, 0.09, 0},
                  {"synchronizer-0", "running", "e1-s42", 4240, 0, 0, 0, 1},
                  {"trainer-0", "running", "e1-s42", 4241, 672, 10000, 0.25, 0}};
  return view;
}

TEST(RenderTableTest, ShowsTheRunItsFiguresAndItsDaemons) {
  EXPECT_THAT(
      RenderTable(Sample(), 200),
      ElementsAre(
          "", "reverse   step 42 of 150   0:07   about 0:10 left",
          "reward 0.812   evaluation 0.920  exact 0.910   best 0.920 in e1-s40   entropy 1.01   gradient norm 0.50   "
          "learning rate 2e-06",
          "staleness 0.94 mean, 2 max   sync 6.1 ms median, 5.8 ms last, 84 ok, 1 failed   pause 0.10 ms",
          "DAEMON          STATE     PID  VERSION  GROUPS  TOKENS/S  IDLE  RESTARTS",
          "rollouter-0     running  4242  e1-s42      350    40,112    9%         0",
          "synchronizer-0  running  4240  e1-s42                                  1",
          "trainer-0       running  4241  e1-s42      672    10,000   25%         0",
          "the trainer waits for groups on rollouter-1"));
}

TEST(RenderTableTest, OnANarrowTerminalNoFigureIsLost) {
  RunView view = Sample();
  view.waiting =
      "the trainer waits for answers of rollouter-1, which has been silent for 3 s; a sign of life ends that";
  EXPECT_THAT(RenderTable(view, 79),
              ElementsAre("", "reverse   step 42 of 150   0:07   about 0:10 left",
                          "reward 0.812   evaluation 0.920  exact 0.910   best 0.920 in e1-s40",
                          "entropy 1.01   gradient norm 0.50   learning rate 2e-06",
                          "staleness 0.94 mean, 2 max   sync 6.1 ms median, 5.8 ms last, 84 ok, 1 failed",
                          "pause 0.10 ms", "DAEMON          STATE     PID  VERSION  GROUPS  TOKENS/S  IDLE  RESTARTS",
                          "rollouter-0     running  4242  e1-s42      350    40,112    9%         0",
                          "synchronizer-0  running  4240  e1-s42                                  1",
                          "trainer-0       running  4241  e1-s42      672    10,000   25%         0",
                          "the trainer waits for answers of rollouter-1, which has been silent for 3 s; a",
                          "sign of life ends that"));
}

TEST(RenderTableTest, HasALineForTheAlarmsThatStand) {
  RunView view = Sample();
  const size_t lines = RenderTable(view, 120).size();
  records::StepRecord step = Step(43, 0.5);
  step.alarms = {"entropy", "no_signal"};
  view.steps.Add(step);
  EXPECT_THAT(RenderTable(view, 120), Contains("alarm: entropy has collapsed, groups have no signal"));
  view.steps.Add(Step(44, 0.5));
  EXPECT_EQ(RenderTable(view, 120).size(), lines);
}

TEST(RenderTableTest, SaysOnceWhatAPersonMustMend) {
  RunView view = Sample();
  const size_t lines = RenderTable(view, 120).size();
  view.alarm = "rollouter-1 gets no new weights";
  EXPECT_THAT(RenderTable(view, 120), Contains(view.alarm));
  view.alarm = view.waiting;  // as for a full disk
  EXPECT_EQ(RenderTable(view, 120).size(), lines);
}

TEST(RenderTableTest, SaysWhichRowsAndGroupsCameToNothing) {
  RunView view = Sample();
  const size_t lines = RenderTable(view, 120).size();
  view.groups = {{"trained", 100}, {"skipped", 1200}, {"failed", 3}, {"dropped_stale", 2}, {"filtered", 7}};
  EXPECT_THAT(RenderTable(view, 120), Contains("1,200 rows skipped, 3 groups failed, 2 groups stale"));
  // Skipped and filtered groups are replaced on purpose.
  view.groups = {{"trained", 100}, {"skipped", 0}, {"filtered", 7}};
  EXPECT_EQ(RenderTable(view, 120).size(), lines);
}

TEST(RenderTableTest, SaysThatCheckpointsFailAndWhy) {
  RunView view = Sample();
  view.checkpoints.failed = 2;
  view.checkpoints.error = "e1-s40: no space left";
  EXPECT_THAT(RenderTable(view, 120), Contains("checkpoints: 2 failed, the newest with e1-s40: no space left"));
  view.checkpoints.error.clear();
  EXPECT_THAT(RenderTable(view, 120), Contains("checkpoints: 2 failed, but the newest is saved"));
}

TEST(RenderTableTest, SaysWhatElseIsKnownOfTheLastEvaluation) {
  RunView view = Sample();
  records::StepRecord evaluation = Evaluation(42, 0.5);
  evaluation.eval_files = {{"a.jsonl", 3, 0.25}, {"b.jsonl", 5, 0.75}};
  view.steps.Add(evaluation);
  EXPECT_THAT(RenderTable(view, 120), Contains("evaluation by file a.jsonl 0.250, b.jsonl 0.750"));
}

TEST(RenderTableTest, ARunThatEndsByTheClockIsNoLongerThanThat) {
  RunView view = Sample();
  view.seconds_limit = 10;
  EXPECT_THAT(RenderTable(view, 120), Contains("reverse   step 42 of 150   0:07   about 0:03 left"));
}

TEST(RenderTableTest, FitsTheTerminal) {
  EXPECT_THAT(RenderTable(Sample(), 30), Each(::testing::SizeIs(::testing::Le(30u))));
}

TEST(RenderSamplesTest, SaysWhichAnswersAreRight) {
  records::StepRecord evaluation = Evaluation(0, 0.5);
  evaluation.samples = {{"1 2 ->", "2 1", "2 1"}, {"3 4 ->", "3 3", "4 3"}};
  EXPECT_THAT(RenderSamples(evaluation), ElementsAre("  1 2 ->  2 1   right", "  3 4 ->  3 3   expected 4 3"));
}

TEST(RenderSamplesTest, BeginWithTheUsersLastMessageAndHaveNoSpecialTokens) {
  records::StepRecord evaluation = Evaluation(0, 0.5);
  evaluation.samples = {{"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n", "So.<|im_end|>",
                         "So.", 1, "Why?", "So."}};
  EXPECT_THAT(RenderSamples(evaluation), ElementsAre("  Why?  So.   right"));
}

TEST(RenderSamplesTest, AreOneLineEachWhateverAModelAnswers) {
  records::StepRecord evaluation = Evaluation(0, 0.5);
  const std::string accents(61, '\xe9');  // not valid UTF-8
  evaluation.samples = {{"two\n\n  lines", "\x1b[2J\x07red \u202e dne", "", 0},
                        {std::string(61, 'q'), "\u00e9\u00e9", "", 0},
                        {"\xc3", accents, "", 0}};
  const std::vector<std::string> lines = RenderSamples(evaluation);
  EXPECT_EQ(lines[0], "  two lines  [2J red dne   reward 0");
  EXPECT_EQ(lines[1], "  " + std::string(60, 'q') + "...  \u00e9\u00e9   reward 0");
  EXPECT_THAT(lines[2], ::testing::StartsWith("  \ufffd  \ufffd"));
}

TEST(RenderSamplesTest, SaysTheRewardOfTextThatNothingCanBeComparedWith) {
  records::StepRecord evaluation = Evaluation(0, 0.5);
  evaluation.samples = {{"hello", "good day", "", 0.75}, {"2 + 2", "It is 4", "4", 1}};
  EXPECT_THAT(RenderSamples(evaluation),
              ElementsAre("  hello  good day   reward 0.75", "  2 + 2  It is 4   reward 1   expected 4"));
}

}  // namespace
}  // namespace syncopate::run
