// A run whose rewards come from users' Python: the real worker under `syncopate run`, which the test kills once.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/environment_worker.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::python_reward_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kCode[] = R"(
from syncopate import reward, verl_reward

@reward("quarter")
def quarter(answer, row):
    assert isinstance(answer, str) and row["ground_truth"].isdigit() and row["answer"] == "count them"
    assert row["prompt"].endswith("=") and row["level"]["of"] == [1, 2]
    return {"value": 0.25, "known": 1.0}

@reward("broken")
def broken(answer, row):
    return len(row["no such field"])

@reward("picky")
def picky(answer, row):
    if row["prompt"] == "9+9=":
        raise ValueError("nine is too much")
    return 0.5

@verl_reward("half")
def half(data_source, solution_str, ground_truth, extra_info=None):
    return 0.5 if ground_truth.isdigit() else 0.0
)";

class PythonRewardTest : public ::testing::Test {
 protected:
  PythonRewardTest() {
    std::ofstream rows(Path("rows.jsonl"));
    for (int i = 0; i < 40; ++i) {
      // Each row has two fields that could be the right answer, and one field that only the reward reads.
      rows << "{\"prompt\": \"" << i % 5 << "+" << i / 5 << "=\", \"answer\": \"count them\", \"result\": \""
           << i % 5 + i / 5 << "\", \"level\": {\"of\": [1, 2]}}\n";
    }
    rows.close();
    WriteCode("");
    const std::string command = absl::StrCat(SYNCOPATE_PYTHON, " ", SYNCOPATE_SOURCE_DIR, "/scripts/tiny_model.py ",
                                             Path("model"), " --hidden 32 --layers 1 --text ", Path("rows.jsonl"));
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }
  void WriteCode(const std::string& more) const { std::ofstream(Path("code.py")) << kCode << more; }
  std::vector<std::string> Settings(int steps, const std::string& reward = "python:quarter + 2*python:half") const {
    return {"model.path=" + Path("model"),
            "data.files=" + Path("rows.jsonl"),
            "data.answer_field=result",
            "data.max_prompt_tokens=32",
            "data.chat_template=off",
            "data.batch_groups=8",
            "rollout.samples=8",
            "rollout.max_new_tokens=4",
            "train.learning_rate=2e-3",
            "train.device=cpu",
            "rollout.device=cpu",
            "eval.prompts=8",
            "reward.name=" + reward,
            absl::StrCat("environment.command=env PYTHONPATH=", SYNCOPATE_SOURCE_DIR, "/python ", SYNCOPATE_PYTHON,
                         " -m syncopate.worker --processes 2 ", Path("code.py")),
            absl::StrCat("run.steps=", steps)};
  }

  TempDir folder_;
};

int GetExit(const absl::StatusOr<std::unique_ptr<Process>>& process) {
  if (!process.ok()) return -1;
  const auto exit = (*process)->WaitExit(2 * kPatience);
  EXPECT_THAT(exit, IsOk()) << (*process)->Log();
  return exit.ok() ? exit->code : -1;
}

TEST_F(PythonRewardTest, TrainsOnWhatUserCodeSaysThoughTheWorkerIsKilledOnTheWay) {
  RunHarness run(Settings(12));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(2), IsOk());
  const pid_t worker = GetWorker(run);
  ASSERT_GT(worker, 0);
  ::kill(worker, SIGKILL);
  EXPECT_EQ(GetExit(process), 0);
  EXPECT_NE(GetWorker(run), worker);
  EXPECT_EQ(run.Summary()["run"]["restarts"]["environment-0"], 1);
  ASSERT_EQ(run.Records("step").size(), 12u);
  for (const Json& step : run.Records("step")) EXPECT_FLOAT_EQ(step["reward_mean"].get<float>(), 1.25f);
  const Json evaluation = run.Records("eval").back();
  EXPECT_FLOAT_EQ(evaluation["eval_reward"].get<float>(), 1.25f);
  EXPECT_THAT(evaluation["samples"][0]["expected"].get<std::string>(), ::testing::MatchesRegex("[0-9]+"));
}

TEST_F(PythonRewardTest, ARewardThatFailsForEverythingSaysWhereAtOnceAndEndsTheRun) {
  RunHarness run(Settings(12, "python:broken"));
  auto process = run.Run({"reward.max_failures=24", "reward.attempts=1"});
  EXPECT_EQ(GetExit(process), 1);
  const std::string where = "KeyError: 'no such field' (code.py:";
  EXPECT_THAT((*process)->Log(), AllOf(HasSubstr("REWARD_FAILED"), HasSubstr(where)));
  EXPECT_THAT(run.Log("trainer-0"), AllOf(HasSubstr("REWARD_FAILED"), HasSubstr(where)));
  EXPECT_THAT(run.Log("environment-0"), AllOf(HasSubstr("Traceback"), HasSubstr("return len(row[")));
  EXPECT_THAT(run.Records("eval"), ::testing::IsEmpty()) << "no prompt was judged";
  EXPECT_TRUE(std::filesystem::exists(run.Path("checkpoints"))) << "the trainer saves a checkpoint";
}

TEST_F(PythonRewardTest, OneRowThatItsRewardCannotJudgeCostsTheEvaluationThatRowAlone) {
  std::ofstream rows(Path("eval.jsonl"));
  for (int i = 2; i < 10; ++i) rows << "{\"prompt\": \"" << i << "+" << i << "=\", \"result\": \"" << 2 * i << "\"}\n";
  rows.close();
  RunHarness run(Settings(1000000, "python:picky"));
  auto process = run.Run({"data.eval_files=" + Path("eval.jsonl"), "reward.attempts=1"});
  ASSERT_THAT(process, IsOk());
  const std::string why = "ValueError: nine is too much (code.py:";
  EXPECT_TRUE(Eventually(kPatience, [&] {
    return !run.Records("eval").empty() && absl::StrContains((*process)->Log(), why);
  })) << "told while the run goes on";
  (*process)->Terminate();
  EXPECT_EQ(GetExit(process), 130);
  const std::vector<Json> evaluations = run.Records("eval");
  ASSERT_FALSE(evaluations.empty());
  for (const Json& one : evaluations) {
    EXPECT_EQ(one["eval_prompts"], 7);
    EXPECT_EQ(one["eval_asked"], 8);
    EXPECT_FLOAT_EQ(one["eval_reward"].get<float>(), 0.5f);
  }
}

TEST_F(PythonRewardTest, ARewardThatTheWorkerDoesNotHaveIsRefusedAtTheStartWithThoseThatItHas) {
  RunHarness run(Settings(2, "python:quater"));
  auto process = run.Run();
  EXPECT_EQ(GetExit(process), 1);
  EXPECT_THAT((*process)->Log(), HasSubstr("has no reward named quater; it has broken, half, picky, quarter"));
}

TEST_F(PythonRewardTest, AResumeWithOtherCodeIsRefusedUnlessItIsMeant) {
  RunHarness run(Settings(2));
  EXPECT_EQ(GetExit(run.Run()), 0);
  WriteCode("# an opinion has changed\n");
  EXPECT_NE(GetExit(run.Resume({"run.steps=4"})), 0);
  EXPECT_THAT(run.Log("trainer-0"), AllOf(HasSubstr("FIXED_KEY"), HasSubstr("environment.digest")));
  EXPECT_EQ(GetExit(run.Resume({"run.steps=4", "--accept-reward-change"})), 0);
  EXPECT_EQ(run.LastStep(), 4);
  const auto events = RunCommand("syncopate", {"events", run.run_dir(), "--kind", "reward_change"});
  ASSERT_THAT(events, IsOk());
  EXPECT_THAT(events->output, HasSubstr("environment.digest"));
  WriteCode("");
  EXPECT_NE(GetExit(run.Resume({"run.steps=5"})), 0) << "the run's code is the new one now";
}

}  // namespace
}  // namespace syncopate::testing::python_reward_test
