#include "tools/report/run_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace syncopate::report {
namespace {

using nlohmann::json;
using ::testing::EndsWith;

records::StepRecord Step(int64_t step, double reward, std::vector<std::string> alarms = {}) {
  records::StepRecord record;
  record.step = step;
  record.figures.reward_mean = reward;
  record.figures.trained_tokens = 100;
  record.figures.step_seconds = 0.5;
  record.figures.wait_seconds = 0.1;
  record.alarms = std::move(alarms);
  return record;
}

records::StepRecord Evaluation(int64_t step, double reward, int64_t epoch = 1) {
  records::StepRecord record;
  record.is_evaluation = true;
  record.epoch = epoch;
  record.step = step;
  record.eval_reward = reward;
  record.samples = {{"prompt", absl::StrCat("answer ", step), "", 0.5}};
  return record;
}

v1::Event Event(const std::string& kind, const std::string& role, int64_t step, double at,
                const std::map<std::string, std::string>& fields = {}) {
  v1::Event event;
  event.set_kind(kind);
  event.set_role(role);
  event.set_unix_seconds(at);
  event.mutable_version()->set_epoch(1);
  event.mutable_version()->set_step(step);
  for (const auto& [name, value] : fields) (*event.mutable_fields())[name] = value;
  return event;
}

TEST(RunHistoryTest, AStepHasItsFiguresItsPartsAndItsRates) {
  RunHistory history;
  records::StepRecord step = Step(3, 0.25);
  step.reward_parts = {{"format", 0.5}};
  history.AddRecord(step);
  const json figures = history.ToJson()["steps"]["figures"];
  EXPECT_EQ(figures["reward_mean"]["mean"][0], 0.25);
  EXPECT_EQ(figures["part:format"]["mean"][0], 0.5);
  EXPECT_EQ(figures["tokens_per_second"]["mean"][0], 200);
  EXPECT_EQ(figures["idle_ratio"]["mean"][0], 0.2);
}

TEST(RunHistoryTest, AStepSaysWhenItWasMadeSinceTheFirstOne) {
  RunHistory history;
  for (int64_t step : {1, 2, 3}) {
    records::StepRecord record = Step(step, 0);
    record.unix_seconds = 1.8e9 + 10 * static_cast<double>(step);
    history.AddRecord(record);
  }
  const json run = history.ToJson();
  EXPECT_EQ(run["first_unix_seconds"], 1.8e9 + 10);
  EXPECT_EQ(run["steps"]["figures"]["seconds_so_far"]["mean"], json::parse("[0.0,10.0,20.0]"));
}

TEST(RunHistoryTest, AnEvaluationHasItsPartsItsSubsetsAndItsLengths) {
  RunHistory history;
  records::StepRecord evaluation = Evaluation(2, 0.5);
  evaluation.eval_reward_parts = {{"format", 0.25}};
  evaluation.eval_files = {{"a.jsonl", 3, 0.5}, {"b.jsonl", 3, 1}};
  evaluation.eval_data_sources = {{"gsm8k", 3, 0.75}};
  evaluation.eval_response_tokens_mean = 5.5;
  evaluation.eval_response_tokens_min = 1;
  evaluation.eval_response_tokens_max = 9;
  history.AddRecord(evaluation);
  EXPECT_EQ(history.ToJson()["evaluations"][0]["figures"],
            json::parse(R"({"part:format":0.25,"file:a.jsonl":0.5,"file:b.jsonl":1.0,"source:gsm8k":0.75,)"
                        R"("tokens:mean":5.5,"tokens:shortest":1.0,"tokens:longest":9.0})"));
}

TEST(RunHistoryTest, AnAlarmStandsFromItsFirstRecordToTheFirstWithout) {
  RunHistory history;
  history.AddRecord(Step(1, 0));
  history.AddRecord(Step(2, 0, {"entropy"}));
  history.AddRecord(Step(3, 0, {"entropy", "no_signal"}));
  history.AddRecord(Step(4, 0, {"no_signal"}));
  const json alarms = history.ToJson()["alarms"];
  ASSERT_EQ(alarms.size(), 2u);
  EXPECT_EQ(alarms[0]["name"], "entropy");
  EXPECT_EQ(alarms[0]["from"], 2);
  EXPECT_EQ(alarms[0]["to"], 4);
  EXPECT_TRUE(alarms[1]["to"].is_null());
}

TEST(RunHistoryTest, ARepeatedStepOrEvaluationReplacesWhatCameAfterIt) {
  RunHistory history;
  for (const int64_t step : {1, 2, 3}) history.AddRecord(Step(step, 0));
  history.AddRecord(Evaluation(2, 0.5));
  history.AddRecord(Evaluation(3, 0.6));
  history.AddRecord(Step(2, 1));
  history.AddRecord(Evaluation(2, 0.7, /*epoch=*/2));
  const json run = history.ToJson();
  EXPECT_EQ(run["steps"]["at"], json::parse("[1,2]"));
  ASSERT_EQ(run["evaluations"].size(), 1u);
  EXPECT_EQ(run["evaluations"][0]["reward_mean"], 0.7);
}

TEST(RunHistoryTest, SyncsAndVersionsComeFromEvents) {
  RunHistory history;
  history.AddEvent(Event("publish", "trainer", 1, 100));
  history.AddEvent(Event("install", "rollouter-0", 1, 100.5, {{"pause_seconds", "0.001"}}));
  history.AddEvent(Event("sync", "synchronizer", 1, 100.6,
                         {{"result", "ok"}, {"transfer_seconds", "0.25"}, {"total_seconds", "0.5"}}));
  history.AddEvent(Event("sync", "synchronizer", 1, 100.7, {{"result", "DEADLINE"}, {"total_seconds", "99"}}));
  const json run = history.ToJson();
  EXPECT_EQ(run["syncs"]["at"], json::parse("[1]"));
  EXPECT_EQ(run["syncs"]["figures"]["transfer"]["mean"][0], 0.25);
  EXPECT_EQ(run["syncs"]["figures"]["total"]["mean"][0], 0.5);
  EXPECT_EQ(run["syncs"]["figures"]["pause"]["mean"][0], 0.001);
  EXPECT_EQ(run["versions"]["at"], json::parse("[0,500]"));
  EXPECT_EQ(run["version_now"], json::parse(R"({"rollouter-0":1,"trainer":1})"));
}

TEST(RunHistoryTest, ALaggardsSyncStandsBesideTheNewest) {
  RunHistory history;
  for (const int64_t step : {5, 3, 6}) history.AddSync({.version = {1, step}, .total = 1});
  EXPECT_EQ(history.ToJson()["syncs"]["at"], json::parse("[5,6]"));
  history.AddSync({.version = {2, 4}, .total = 1});  // a sync after a restore
  EXPECT_EQ(history.ToJson()["syncs"]["at"], json::parse("[4]"));
}

TEST(RunHistoryTest, WhatManyEvaluationsSayIsBounded) {
  RunHistory history;
  for (int64_t step = 0; step < 3000; ++step) history.AddRecord(Evaluation(step, 0.5));
  const json run = history.ToJson();
  EXPECT_EQ(run["evaluations"].size(), RunHistory::kMaxEvaluations);
  EXPECT_EQ(run["evaluations"][0]["step"], 0);
  EXPECT_LE(run["samples"].size(), RunHistory::kMaxSampledEvaluations + 1);
  EXPECT_EQ(run["samples"][0]["step"], 0);
  EXPECT_EQ(run["samples"].back()["step"], 2999);
}

TEST(RunHistoryTest, ALongTextIsCutAtTheEndOfACharacterAndABrokenOneMended) {
  RunHistory history;
  records::StepRecord evaluation = Evaluation(1, 0.5);
  std::string text(RunHistory::kMaxSampleBytes - 1, 'a');
  evaluation.samples = {{text + "\xc3\xa9", "\xff", "", 1}};
  history.AddRecord(evaluation);
  const json answer = history.ToJson()["samples"][0]["answers"][0];
  EXPECT_EQ(answer["prompt"], text + " ...");
  EXPECT_EQ(answer["answer"], "\xef\xbf\xbd");
  EXPECT_FALSE(answer.contains("expected"));
}

TEST(RunHistoryTest, AClientThatHasTheEvaluationsDoesNotGetThemAgain) {
  RunHistory history;
  history.AddRecord(Step(1, 0));
  history.AddRecord(Evaluation(1, 0.5));
  const uint64_t revision = history.ToJson()["revision"];
  const json again = history.ToJson({.step_span = 1, .steps = 1, .evaluations_revision = revision});
  EXPECT_FALSE(again.contains("evaluations"));
  EXPECT_FALSE(again.contains("config"));
  history.AddRecord(Evaluation(2, 0.5));
  EXPECT_TRUE(history.ToJson({.evaluations_revision = revision}).contains("evaluations"));
}

}  // namespace
}  // namespace syncopate::report
