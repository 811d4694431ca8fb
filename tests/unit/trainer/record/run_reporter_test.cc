#include "trainer/record/run_reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RunReporterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = absl::StrCat(::testing::TempDir(), "/run_reporter_", test->name(), ".jsonl");
    std::filesystem::remove(path_);
    auto reporter = RunReporter::Open(FileSystem::Real(), path_);
    ASSERT_THAT(reporter, IsOk());
    reporter_ = *std::move(reporter);
  }

  void Step(int64_t step) {
    StepReport report;
    report.version = {1, step};
    report.figures.step_seconds = 2;
    report.figures.wait_seconds = 0.5;
    reporter_->RecordStep(report);
  }

  // The events that one watcher got, in order: a step's number, or "end".
  struct Watcher {
    std::vector<std::string> told;
    RunReporter::Listener Listener() {
      return {[this](int64_t step, const std::string&) { told.push_back(absl::StrCat(step)); },
              [this] { told.push_back("end"); }};
    }
  };

  std::string path_;
  std::unique_ptr<RunReporter> reporter_;
};

TEST_F(RunReporterTest, AWatcherGetsThePastItAskedForThenEveryLineThenTheEnd) {
  Watcher all, some, none;
  for (int64_t step : {1, 2, 3}) Step(step);
  auto unwatch_all = reporter_->Watch(10, all.Listener());
  auto unwatch_some = reporter_->Watch(2, some.Listener());
  auto unwatch_none = reporter_->Watch(0, none.Listener());
  unwatch_none();
  Step(4);
  reporter_->End();
  reporter_->End();
  EXPECT_THAT(all.told, ElementsAre("1", "2", "3", "4", "end"));
  EXPECT_THAT(some.told, ElementsAre("2", "3", "4", "end"));
  EXPECT_THAT(none.told, IsEmpty());
  unwatch_all();
  unwatch_some();
}

TEST_F(RunReporterTest, LinesThatComeWhileThePastIsToldDoNotOvertakeIt) {
  std::vector<std::string> told;
  for (int64_t step : {1, 2, 3}) Step(step);
  reporter_->Watch(10, {[&](int64_t step, const std::string&) {
                          if (step == 1) {  // another thread might do this at the same time
                            Step(4);
                            reporter_->End();
                          }
                          told.push_back(absl::StrCat(step));
                        },
                        [&] { told.push_back("end"); }});
  EXPECT_THAT(told, ElementsAre("1", "2", "3", "4", "end"));
}

TEST_F(RunReporterTest, NothingIsToldAfterTheWatchHasEnded) {
  std::vector<std::string> told;
  std::function<void()> unwatch;
  auto stop_at_two = [&](int64_t step, const std::string&) {
    told.push_back(absl::StrCat(step));
    if (step == 2) unwatch();
  };
  unwatch = reporter_->Watch(0, {stop_at_two, [&] { told.push_back("end"); }});
  for (int64_t step : {1, 2, 3}) Step(step);
  reporter_->End();
  EXPECT_THAT(told, ElementsAre("1", "2"));
}

TEST_F(RunReporterTest, WithoutAnEvaluationThereIsNoFigureOfOne) {
  Step(1);
  EXPECT_FALSE(reporter_->figures().best_exact.has_value());
  EXPECT_FALSE(reporter_->figures().last_exact.has_value());
}

TEST_F(RunReporterTest, AListenerThatComesAfterTheEndIsToldAtOnce) {
  Watcher late;
  Step(1);
  reporter_->End();
  reporter_->Watch(5, late.Listener());
  EXPECT_THAT(late.told, ElementsAre("1", "end"));
}

TEST_F(RunReporterTest, AStepTellsMismatchAndRewardByAge) {
  StepReport report;
  report.figures.chi2_token = 0.25;
  report.figures.ages[2] = {.tokens = 10, .k1 = -0.5, .k3 = 0.125, .rejected = 0.5};
  report.figures.samples_by_age[3] = 4;
  report.figures.reward_by_age[3] = 3;
  report.figures.trained_token_ratio = 0.5;
  reporter_->RecordStep(report);
  std::ifstream file(path_);
  std::string text;
  std::getline(file, text);
  const nlohmann::json line = nlohmann::json::parse(text);
  EXPECT_EQ(line.at("chi2_token"), 0.25);
  EXPECT_EQ(line.at("trained_token_ratio"), 0.5);
  ASSERT_EQ(line.at("ages").size(), 2u);  // only ages with tokens or samples have a line
  EXPECT_EQ(line.at("ages")[0].at("age"), 2);
  EXPECT_EQ(line.at("ages")[0].at("k3"), 0.125);
  EXPECT_FALSE(line.at("ages")[0].contains("reward_mean"));
  EXPECT_EQ(line.at("ages")[1].at("reward_mean"), 0.75);
}

TEST_F(RunReporterTest, ALongSampleIsCutAndHasItsReward) {
  EvaluationReport report;
  report.version = {1, 2};
  report.reward_mean = 0.5;
  report.samples = {{std::string(40000, 'p'), "a", "", 0.25}};
  reporter_->RecordEvaluation(report);
  std::ifstream file(path_);
  const nlohmann::json line = nlohmann::json::parse(file);
  EXPECT_FALSE(line.contains("eval_exact"));
  EXPECT_EQ(line.at("samples")[0].at("prompt"), std::string(16384, 'p') + " ...");
  EXPECT_EQ(line.at("samples")[0].at("reward"), 0.25);
}

TEST_F(RunReporterTest, AnEvaluationHasItsPartsLengthsAndAFigureBySubset) {
  EvaluationReport report;
  report.version = {1, 2};
  report.figures = {.reward_parts = {{"format", 0.5}},
                    .response_tokens_mean = 7.5,
                    .response_tokens_min = 5,
                    .response_tokens_max = 10,
                    .truncated = 1,
                    .files = {{"a.jsonl", 3, 0.25}, {"b.jsonl", 5, 0.75}},
                    .data_sources = {{"gsm8k", 8, 0.5}},
                    .environments = {{"desk", 8, 0.5, 20, 3}}};
  report.samples = {{"<|user|>Why?", "So.<|end|>", "", 1, "Why?", "So."}};
  reporter_->RecordEvaluation(report);
  std::ifstream file(path_);
  const nlohmann::json line = nlohmann::json::parse(file);
  EXPECT_EQ(line.at("eval_reward_parts").at("format"), 0.5);
  EXPECT_EQ(line.at("eval_response_tokens_mean"), 7.5);
  EXPECT_EQ(line.at("eval_response_tokens_min"), 5);
  EXPECT_EQ(line.at("eval_response_tokens_max"), 10);
  EXPECT_EQ(line.at("eval_truncated"), 1);
  EXPECT_EQ(line.at("eval_files").at("b.jsonl").at("prompts"), 5);
  EXPECT_EQ(line.at("eval_files").at("b.jsonl").at("reward"), 0.75);
  EXPECT_EQ(line.at("eval_data_sources").at("gsm8k").at("reward"), 0.5);
  EXPECT_EQ(line.at("eval_environments").at("desk"),
            nlohmann::json({{"prompts", 8}, {"reward", 0.5}, {"response_tokens", 20.0}, {"turns", 3.0}}));
  EXPECT_FALSE(line.contains("eval_turns_mean")) << "answers without turns";
  EXPECT_EQ(line.at("samples")[0].at("prompt"), "<|user|>Why?");
  EXPECT_EQ(line.at("samples")[0].at("question"), "Why?");
  EXPECT_EQ(line.at("samples")[0].at("reply"), "So.");
}

TEST_F(RunReporterTest, EveryLineHasItsTimeAndAStepItsLearningRateAndHowFarTheRunIs) {
  StepReport report;
  report.version = {1, 3};
  report.figures.learning_rate = 1e-6;
  report.figures.reward_min = -1;
  report.figures.response_tokens_min = 2;
  report.figures.response_tokens_max = 9;
  report.figures.samples_so_far = 192;
  report.figures.tokens_so_far = 3000;
  const double before = Clock::Real()->UnixSeconds();
  reporter_->RecordStep(report);
  reporter_->RecordEvaluation(EvaluationReport());
  std::ifstream file(path_);
  std::string step, evaluation;
  ASSERT_TRUE(std::getline(file, step) && std::getline(file, evaluation));
  const nlohmann::json line = nlohmann::json::parse(step);
  EXPECT_EQ(line.at("learning_rate"), 1e-6);
  EXPECT_EQ(line.at("reward_min"), -1);
  EXPECT_EQ(line.at("response_tokens_min"), 2);
  EXPECT_EQ(line.at("response_tokens_max"), 9);
  EXPECT_EQ(line.at("samples_so_far"), 192);
  EXPECT_EQ(line.at("tokens_so_far"), 3000);
  EXPECT_GE(line.at("unix_seconds"), before);
  EXPECT_GE(nlohmann::json::parse(evaluation).at("unix_seconds"), line.at("unix_seconds"));
}

TEST_F(RunReporterTest, AHeldOutLossIsInTheLineOfTheStepWhereItWasMeasuredAlone) {
  StepReport report;
  report.supervised = true;
  report.version = {1, 1};
  reporter_->RecordStep(report);
  report.version = {1, 2};
  report.held_out = HeldOutLoss{0.5, 40};
  reporter_->RecordStep(report);
  std::ifstream file(path_);
  std::string line;
  std::getline(file, line);
  EXPECT_FALSE(nlohmann::json::parse(line).contains("held_out_loss"));
  std::getline(file, line);
  EXPECT_EQ(nlohmann::json::parse(line)["held_out_loss"], 0.5);
  EXPECT_EQ(nlohmann::json::parse(line)["held_out_tokens"], 40);
  EXPECT_EQ(reporter_->figures().best_held_out_loss, 0.5);
}

TEST_F(RunReporterTest, LinesAreJsonAndTheFiguresAddThemUp) {
  Step(1);
  Step(2);
  EvaluationReport evaluation;
  evaluation.version = {1, 2};
  for (const double exact : {0.75, 0.5}) {
    evaluation.exact = exact;
    reporter_->RecordEvaluation(evaluation);
  }
  std::ifstream file(path_);
  std::vector<std::string> kinds;
  for (std::string line; std::getline(file, line);) kinds.push_back(nlohmann::json::parse(line).at("kind"));
  EXPECT_THAT(kinds, ElementsAre("step", "step", "eval", "eval"));
  const RunFigures figures = reporter_->figures();
  EXPECT_EQ(figures.step_seconds, 4);
  EXPECT_EQ(figures.wait_seconds, 1);
  EXPECT_EQ(figures.best_exact, 0.75);
  EXPECT_EQ(figures.last_exact, 0.5);
}

}  // namespace
}  // namespace syncopate::trainer
