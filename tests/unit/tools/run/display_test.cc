#include "tools/run/display.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace syncopate::run {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::vector<daemon::DaemonEndpoint> kDaemons = {{"rollouter", 1, "127.0.0.1:1", "127.0.0.1:2", 4242},
                                                      {"trainer", 0, "127.0.0.1:3", "127.0.0.1:4", 4241}};

json Summary(const std::string& outcome, const std::string& reason = "") {
  return {{"staleness", {{"mean", 0.9}, {"max", 3}, {"bound", 4}, {"violations", 0}}},
          {"syncs", {{"count", 300}, {"failed", 0}, {"total_ms", {{"p50", 6.1}}}}},
          {"pause_ms", {{"p50", 0.1}}},
          {"idle", {{"trainer", 0.12}, {"rollouters", 0.2}}},
          {"run", {{"outcome", outcome}, {"reason", reason}, {"wall_seconds", 18.2}}}};
}

records::StepRecord SampledEvaluation(int64_t step, double exact) {
  records::StepRecord record;
  record.is_evaluation = true;
  record.step = step;
  record.eval_reward = exact;
  record.eval_exact = exact;
  record.samples = {{"1 2 ->", "2 1", "2 1"}};
  return record;
}

RunView View() {
  RunView view;
  view.name = "reverse";
  view.steps_total = 150;
  records::StepRecord step;
  step.step = 150;
  view.steps.Add(step);
  view.steps.Add(SampledEvaluation(140, 0.99));
  view.steps.Add(SampledEvaluation(150, 0.98));
  return view;
}

class RunDisplayTest : public ::testing::Test {
 protected:
  std::string Printed() {
    std::string text = out_.str();
    out_.str("");
    return text;
  }
  std::ostringstream out_;
};

TEST_F(RunDisplayTest, TheStartSaysWhereToLookAndWhatToTry) {
  MakeDisplay(RunOutput::kPlain, "bin/syncopate", &out_)->Started("/runs/a", kDaemons, "");
  EXPECT_THAT(Printed(),
              AllOf(HasSubstr("/runs/a"), HasSubstr("http://127.0.0.1:4/metrics"),
                    HasSubstr("  bin/syncopate ctl --run /runs/a watch"), HasSubstr("kill -9 4242   rollouter-1")));
}

TEST_F(RunDisplayTest, PlainShowsTheFirstSamplesEveryEvaluationAndAStepASecond) {
  auto display = MakeDisplay(RunOutput::kPlain, "bin/syncopate", &out_);
  display->Step(SampledEvaluation(0, 0), "{}");
  EXPECT_THAT(Printed(), AllOf(HasSubstr("answers at step 0"), HasSubstr("1 2 ->  2 1"), HasSubstr("exact 0.000")));
  display->Step(SampledEvaluation(10, 0.5), "{}");
  EXPECT_THAT(Printed(), AllOf(HasSubstr("exact 0.500"), Not(HasSubstr("answers"))));
  records::StepRecord step;
  step.step = 11;
  display->Step(step, "{}");
  EXPECT_THAT(Printed(), HasSubstr("step 11"));
  step.step = 12;
  display->Step(step, "{}");
  EXPECT_THAT(Printed(), IsEmpty());
  display->Daemon("rollouter-1", "was killed by signal 9; it is started again");
  EXPECT_THAT(Printed(), HasSubstr("rollouter-1 was killed by signal 9; it is started again\n"));
}

TEST_F(RunDisplayTest, QuietShowsTheEndOnly) {
  auto display = MakeDisplay(RunOutput::kQuiet, "bin/syncopate", &out_);
  display->Started("/runs/a", kDaemons, "");
  display->Step(SampledEvaluation(0, 0), "{}");
  display->Daemon("rollouter-1", "died");
  display->Refresh(View());
  EXPECT_THAT(Printed(), IsEmpty());
  display->Ended(View(), "/runs/a", Summary("completed"));
  EXPECT_THAT(Printed(), HasSubstr("evaluation      0.980 last\nexact match     0.980 last\n"));
  display->Started("/runs/a", kDaemons, "http://127.0.0.1:8080/");
  EXPECT_EQ(Printed(), "page            http://127.0.0.1:8080/\n");
}

TEST_F(RunDisplayTest, SaysOnceWhatAPersonMustMendAndWhenItIsMended) {
  RunView standing = View();
  standing.alarm = "the trainer waits for disk: no space left";
  for (RunOutput output : {RunOutput::kPlain, RunOutput::kQuiet}) {
    auto display = MakeDisplay(output, "bin/syncopate", &out_);
    for (int i = 0; i < 3; ++i) display->Refresh(standing);
    EXPECT_EQ(Printed(), "the trainer waits for disk: no space left\n");
    for (int i = 0; i < 3; ++i) display->Refresh(View());
    EXPECT_EQ(Printed(), "the run goes on\n");
  }
  auto display = MakeDisplay(RunOutput::kJson, "bin/syncopate", &out_);
  display->Refresh(standing);
  EXPECT_EQ(json::parse(Printed(), nullptr, false)["what"], standing.alarm);
  display->Refresh(View());
  EXPECT_EQ(json::parse(Printed(), nullptr, false)["event"], "alarm");
}

TEST_F(RunDisplayTest, SaysTheFirstFailureOfARewardOnce) {
  RunView failing = View();
  failing.reward_failure = "a group got no reward: KeyError: 'x' (mine.py:3 in short)";
  for (RunOutput output : {RunOutput::kPlain, RunOutput::kQuiet, RunOutput::kJson}) {
    auto display = MakeDisplay(output, "bin/syncopate", &out_);
    display->Refresh(View());
    EXPECT_THAT(Printed(), IsEmpty());
    for (int i = 0; i < 3; ++i) display->Refresh(failing);
    EXPECT_EQ(Printed(), output == RunOutput::kJson
                             ? json({{"event", "reward_failed"}, {"what", failing.reward_failure}}).dump() + "\n"
                             : failing.reward_failure + "\n");
  }
  auto live = MakeDisplay(RunOutput::kLive, "bin/syncopate", &out_);
  live->Refresh(failing);
  EXPECT_THAT(Printed(), HasSubstr(failing.reward_failure));
  EXPECT_THAT(RenderTable(failing, 200), ::testing::Contains(failing.reward_failure));
}

TEST_F(RunDisplayTest, SaysWhenAnAlarmOfLearningStandsAndWhenNoneDoesAnyMore) {
  for (RunOutput output : {RunOutput::kPlain, RunOutput::kQuiet}) {
    auto display = MakeDisplay(output, "bin/syncopate", &out_);
    records::StepRecord step;
    step.step = 30;
    step.alarms = {"no_signal"};
    display->Step(step, "{}");
    EXPECT_THAT(Printed(), HasSubstr("step 30  alarm: groups have no signal\n"));
    step.step = 31;
    display->Step(step, "{}");
    EXPECT_THAT(Printed(), IsEmpty());
    step.alarms.clear();
    display->Step(step, "{}");
    EXPECT_THAT(Printed(), HasSubstr("step 31  no alarm stands any more\n"));
  }
}

TEST_F(RunDisplayTest, LiveDrawsTheTableOverTheOneBeforeAndKeepsNotesAboveIt) {
  auto display = MakeDisplay(RunOutput::kLive, "bin/syncopate", &out_);
  display->Refresh(View());
  std::string first = Printed();
  EXPECT_THAT(first, AllOf(HasSubstr("step 150 of 150"), Not(HasSubstr("\x1b["))));
  std::string lines = std::to_string(std::count(first.begin(), first.end(), '\n'));
  display->Daemon("rollouter-1", "died");
  EXPECT_EQ(Printed(), "\x1b[" + lines + "A\x1b[Jrollouter-1 died\n" + first);
  display->Refresh(View());
  EXPECT_EQ(Printed(), "\x1b[" + lines + "A\x1b[J" + first);
}

TEST_F(RunDisplayTest, JsonIsOneObjectALine) {
  auto display = MakeDisplay(RunOutput::kJson, "bin/syncopate", &out_);
  display->Started("/runs/a", kDaemons, "");
  json started = json::parse(Printed(), nullptr, false);
  EXPECT_EQ(started["event"], "started");
  EXPECT_EQ(started["daemons"][0]["pid"], 4242);
  display->Step(SampledEvaluation(0, 0), R"({"kind":"eval","step":0})");
  EXPECT_EQ(json::parse(Printed(), nullptr, false)["metrics"]["kind"], "eval");
  display->Daemon("rollouter-1", "died");
  EXPECT_EQ(json::parse(Printed(), nullptr, false)["what"], "died");
  display->Ended(View(), "/runs/a", Summary("completed"));
  EXPECT_EQ(json::parse(Printed(), nullptr, false)["summary"]["run"]["outcome"], "completed");
}

TEST(RenderEndTest, SaysWhatWasReachedWhereItIsAndHowToGoOn) {
  std::string text = RenderEnd(View(), "bin/syncopate", "/runs/a", Summary("completed"));
  EXPECT_THAT(text,
              AllOf(HasSubstr("answers at step 150"), HasSubstr("completed       at step 150 of 150 after 18.2 s"),
                    HasSubstr("0.90 mean, 3 max, 0 over the bound 4"), HasSubstr("300, 0 failed, median 6.1 ms"),
                    HasSubstr("trainer 12%, rollouters 20%"), HasSubstr("run directory   /runs/a")));
  text = RenderEnd(View(), "bin/syncopate", "/runs/a", Summary("failed", "trainer-0 was killed by signal 9"));
  EXPECT_THAT(text, AllOf(HasSubstr("failed"), HasSubstr("trainer-0 was killed by signal 9"),
                          HasSubstr("  bin/syncopate run --resume /runs/a\n")));
}

TEST(RenderEndTest, OffersNoResumeThatWouldEndTheSameWay) {
  RunView view = View();
  view.resume_helps = false;
  EXPECT_THAT(RenderEnd(view, "bin/syncopate", "/runs/a", Summary("failed", "rollouter-0 refuses its configuration")),
              Not(HasSubstr("--resume")));
}

TEST(RenderEndTest, WhatIsCalledTheBestCanBeExported) {
  RunView view = View();
  view.checkpoints.best = "e1-s100";  // the summary overrides the status
  json summary = Summary("completed");
  summary["checkpoints"] = {{"saved", 3}, {"failed", 0}, {"best", "e1-s140"}, {"best_reward", 0.99}};
  view.checkpoints.export_folder = "/runs/a/checkpoints/best";
  EXPECT_THAT(RenderEnd(view, "bin/syncopate", "/runs/a", summary),
              AllOf(HasSubstr("best checkpoint e1-s140: 0.990\n"),
                    HasSubstr("export the best bin/syncopate export /runs/a/checkpoints/best DIR\n")));
  view.checkpoints.of_adapters = true;
  EXPECT_THAT(RenderEnd(view, "bin/syncopate", "/runs/a", summary),
              HasSubstr("export /runs/a/checkpoints/best DIR --adapter\n"));
  view.checkpoints.best_reward = 0.5;
  EXPECT_THAT(RenderEnd(view, "bin/syncopate", "/runs/a", Summary("failed", "killed")),
              HasSubstr("best checkpoint e1-s100: 0.500\n"));
  EXPECT_THAT(RenderEnd(View(), "bin/syncopate", "/runs/a", Summary("completed")), Not(HasSubstr("best")));
}

TEST(RenderEndTest, SaysWhatWasSkippedDroppedOrNotSaved) {
  json summary = Summary("completed");
  summary["groups"]["dropped"] = {{"skipped", 3}, {"failed", 2}, {"stale", 1}, {"rolled_back", 0}, {"filtered", 9}};
  summary["checkpoints"] = {{"saved", 3}, {"failed", 4}, {"best", nullptr}, {"best_reward", nullptr}};
  EXPECT_THAT(RenderEnd(View(), "bin/syncopate", "/runs/a", summary),
              AllOf(HasSubstr("dropped         3 rows skipped, 2 groups failed, 1 groups stale\n"),
                    HasSubstr("checkpoints     4 failed\n")));
  EXPECT_THAT(RenderEnd(View(), "bin/syncopate", "/runs/a", Summary("completed")),
              AllOf(Not(HasSubstr("dropped")), Not(HasSubstr("checkpoints"))));
}

TEST(RenderEndTest, NeedsNothingFromTheTrainer) {
  json summary = {{"run", {{"outcome", "failed"}, {"reason", "x"}, {"wall_seconds", 1}}}};
  EXPECT_THAT(RenderEnd(RunView(), "bin/syncopate", "/runs/a", summary),
              HasSubstr("failed          at step 0 of 0 after 1.0 s: x"));
}

TEST(RenderEndTest, AnIncarnationThatMadeNoStepEndsWhereTheRunIs) {
  RunView view;
  view.steps_total = 150;
  json summary = Summary("completed");
  summary["steps"] = 150;
  EXPECT_THAT(RenderEnd(view, "bin/syncopate", "/runs/a", summary), HasSubstr("completed       at step 150 of 150"));
}

}  // namespace
}  // namespace syncopate::run
