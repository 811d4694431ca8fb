// What is learned in minutes, from nothing: examples with a tokenizer, a tool and a game. `scripts/test.sh --long`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::long_learning_test {
namespace {

constexpr absl::Duration kLongest = absl::Minutes(60);

// Runs a script of the tree.
void RunScript(const std::string& words) {
  const std::string command = absl::StrCat(SYNCOPATE_PYTHON, " ", SYNCOPATE_SOURCE_DIR, "/scripts/", words);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

class LongLearningTest : public ::testing::Test {
 protected:
  // The rows and the model that the example names, in a folder of the test.
  void MakeText(const std::string& rows, const std::string& model) {
    ASSERT_NO_FATAL_FAILURE(RunScript(absl::StrCat("arithmetic_data.py ", folder_.path(), " ", rows)));
    ASSERT_NO_FATAL_FAILURE(
        RunScript(absl::StrCat("tiny_model.py ", Path("model"), " --text ", Path("train.jsonl"), " ", model)));
  }
  std::vector<std::string> TextSettings() const {
    return {"model.path=" + Path("model"), "data.files=" + Path("train.jsonl"),
            "data.eval_files=" + Path("eval.jsonl")};
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }

  // The evaluations of a run of the example; empty if it does not end well.
  std::vector<Json> Learn(const std::string& example, const std::vector<std::string>& settings) {
    RunHarness run(settings, example);
    auto process = run.Run();
    EXPECT_THAT(process, IsOk());
    if (!process.ok()) return {};
    const auto exit = (*process)->WaitExit(kLongest);
    EXPECT_THAT(exit, IsOk());
    if (!exit.ok()) return {};
    EXPECT_EQ(*exit, ExitStatus{}) << (*process)->Log();
    std::vector<Json> evaluations = run.Records("eval");
    std::string curve;  // "step:reward" for each evaluation, for a reader of the XML
    for (const Json& one : evaluations) {
      absl::StrAppend(&curve, curve.empty() ? "" : " ", one["step"].get<int64_t>(), ":",
                      one["eval_reward"].get<double>());
    }
    RecordProperty("curve", curve);
    return evaluations;
  }

  TempDir folder_;
};

double Reward(const Json& evaluation) { return evaluation["eval_reward"]; }
double Turns(const Json& evaluation) { return evaluation["eval_turns_mean"]; }

TEST_F(LongLearningTest, ACalculatorIsUsedForWhatTheModelCannotCompute) {
  ASSERT_NO_FATAL_FAILURE(MakeText("--products", "--vocabulary 259 --context 128"));
  const std::vector<Json> evaluations = Learn("calculator.yaml", TextSettings());
  ASSERT_FALSE(evaluations.empty());
  EXPECT_LE(Reward(evaluations.front()), 0.6);
  EXPECT_GE(Reward(evaluations.back()), 0.9);
  EXPECT_GE(Turns(evaluations.back()), 1.9) << "answers without the tool";
}

// The supervised steps teach how a sum is written and half of the sums; rewards for right answers teach the others.
TEST_F(LongLearningTest, RewardsTeachTheSumsThatSupervisedStepsDidNot) {
  ASSERT_NO_FATAL_FAILURE(MakeText("", "--vocabulary 360 --hidden 128 --context 64"));
  const std::vector<Json> evaluations = Learn("arithmetic.yaml", TextSettings());
  ASSERT_FALSE(evaluations.empty());
  EXPECT_LE(Reward(evaluations.front()), 0.6);
  EXPECT_GE(Reward(evaluations.back()), 0.95);
}

// The best play needs 4.22 turns, random play inside the interval that is left 5.37, and a model that has learned how a
// turn is written but not how to play at least 8.
TEST_F(LongLearningTest, AGameOfSeveralTurnsIsLearnedFromItsRewardsAlone) {
  const std::vector<Json> evaluations = Learn("guess.yaml", {});
  ASSERT_FALSE(evaluations.empty());
  EXPECT_GE(Turns(evaluations.front()), 8);
  EXPECT_LE(Turns(evaluations.back()), 5);
}

}  // namespace
}  // namespace syncopate::testing::long_learning_test
