// The examples for users with a model directory: each is valid as it is, and runs on a tiny model of its family.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::examples_test {
namespace {

using ::testing::HasSubstr;

// A model directory and a file of rows of the form that the example reads.
class ExamplesTest : public ::testing::Test {
 protected:
  // `row` is the template of a row: ANSWER stands for the right answer of a sum, and QUESTION for its question.
  void Make(const std::string& row) {
    std::ofstream rows(Path("rows.jsonl"));
    for (int i = 0; i < 40; ++i) {
      const std::string answer = absl::StrCat(i % 5 + i / 5);
      rows << absl::StrReplaceAll(
                  row, {{"QUESTION", absl::StrCat("What is ", i % 5, " + ", i / 5, "?")}, {"ANSWER", answer}})
           << "\n";
    }
    rows.close();
    const std::string command = absl::StrCat(SYNCOPATE_PYTHON, " ", SYNCOPATE_SOURCE_DIR, "/scripts/tiny_model.py ",
                                             Path("model"), " --hidden 32 --layers 1 --text ", Path("rows.jsonl"));
    ASSERT_EQ(std::system(command.c_str()), 0);
  }

  // The overrides that make an example run within seconds on a machine without GPUs.
  std::vector<std::string> Small(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> settings = {"model.path=" + Path("model"),
                                         "data.files=" + Path("rows.jsonl"),
                                         "data.eval_files=" + Path("rows.jsonl"),
                                         "data.max_prompt_tokens=256",
                                         "data.batch_groups=4",
                                         "data.refill_zero_variance=false",
                                         "rollout.samples=4",
                                         "rollout.max_new_tokens=24",
                                         "rollout.device=cpu",
                                         "train.device=cpu",
                                         "eval.prompts=4",
                                         "run.steps=2"};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }

  void ExpectARun(const std::string& example, const std::vector<std::string>& settings) {
    std::vector<std::string> check = {"config", "check", ExamplePath(example)};
    check.insert(check.end(), settings.begin(), settings.end());
    const auto checked = RunCommand("syncopate", check);
    ASSERT_THAT(checked, IsOk());
    EXPECT_EQ(checked->code, 0) << checked->output;
    run_ = std::make_unique<RunHarness>(settings, example);
    const auto process = run_->Run();
    ASSERT_THAT(process, IsOk());
    const auto exit = (*process)->WaitExit(2 * kPatience);
    ASSERT_THAT(exit, IsOk());
    ASSERT_EQ(exit->code, 0) << (*process)->Log();
    EXPECT_EQ(run_->Summary()["steps"], 2);
  }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }

  TempDir folder_;
  std::unique_ptr<RunHarness> run_;
};

TEST_F(ExamplesTest, GradeSchoolMathematicsRunsOnATinyModel) {
  Make(R"({"question": "QUESTION", "answer": "Count them. #### ANSWER"})");
  ExpectARun("gsm8k.yaml", Small());
  const std::vector<Json> evaluations = run_->Records("eval");
  ASSERT_FALSE(evaluations.empty());
  ASSERT_FALSE(evaluations.back()["samples"].empty()) << evaluations.back();
  const Json& sample = evaluations.back()["samples"][0];
  EXPECT_THAT(sample["prompt"].get<std::string>(), HasSubstr("end with ####"));
  EXPECT_TRUE(sample["reward"].is_number());
}

TEST_F(ExamplesTest, CompetitionMathematicsRunsOnATinyModel) {
  Make(
      R"({"prompt": [{"role": "user", "content": "QUESTION"}], "data_source": "sums", "reward_model": {"ground_truth": "ANSWER"}})");
  ExpectARun("math.yaml", Small({"reward.overlong_buffer=8"}));
  const Json parts = run_->Records("step").back()["reward_parts"];
  EXPECT_TRUE(parts.contains("math")) << parts;
  EXPECT_TRUE(parts.contains("overlong")) << parts;
}

TEST_F(ExamplesTest, ARewardInPythonRunsOnATinyModel) {
  Make(R"({"prompt": "QUESTION", "answer": "ANSWER"})");
  ExpectARun(
      "custom_reward.yaml",
      Small({absl::StrCat("environment.command=env PYTHONPATH=", SYNCOPATE_SOURCE_DIR, "/python ", SYNCOPATE_PYTHON,
                          " -m syncopate.worker --processes 1 ", ExamplePath("custom_reward.py"))}));
  const Json parts = run_->Records("step").back()["reward_parts"];
  EXPECT_TRUE(parts.contains("python:short")) << parts;
  EXPECT_TRUE(parts.contains("python:polite")) << parts;
}

TEST_F(ExamplesTest, AnEnvironmentInPythonRunsOnATinyModel) {
  Make(R"({"prompt": "QUESTION", "answer": "ANSWER"})");
  ExpectARun("guess_number.yaml",
             Small({absl::StrCat("environment.command=env PYTHONPATH=", SYNCOPATE_SOURCE_DIR, "/python ",
                                 SYNCOPATE_PYTHON, " -m syncopate.worker ", ExamplePath("guess_number.py")),
                    "rollout.max_total_tokens=96"}));
  EXPECT_LT(run_->Records("step").back()["reward_mean"].get<float>(), 0) << "a turn that is wrong costs something";
}

}  // namespace
}  // namespace syncopate::testing::examples_test
