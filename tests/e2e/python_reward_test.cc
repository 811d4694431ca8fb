// A run whose rewards come from users' Python: the real worker under `syncopate run`, killed on the way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing {
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

@verl_reward("half")
def half(data_source, solution_str, ground_truth, extra_info=None):
    return 0.5 if ground_truth.isdigit() else 0.0
)";

class PythonRewardTest : public ::testing::Test {
 protected:
  PythonRewardTest() {
    std::ofstream rows(Path("rows.jsonl"));
    for (int i = 0; i < 40; ++i) {
      // Two fields that could be the right answer, and one that only the reward knows.
      rows << "{\"prompt\": \"" << i % 5 << "+" << i / 5 << "=\", \"answer\": \"count them\", \"result\": \"" << i % 5 + i / 5
           << "\", \"level\": {\"of\": [1, 2]}}\n";
    }
    rows.close();
    WriteCode("");
    const std::string command = absl::StrCat(SYNCOPATE_PYTHON, " ", SYNCOPATE_SOURCE_DIR, "/scripts/tiny_model.py ",
                                             Path("model"), " --hidden 32 --layers 1 --text ", Path("rows.jsonl"));
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }
  void WriteCode(const std::string& more) const { std::ofstream(Path("code.py")) << kCode << more; }
  std::vector<std::string> Settings(int steps) const {
    return {"model.path=" + Path("model"),
            "data.files=" + Path("rows.jsonl"),
            "data.answer_field=result",
            "data.max_prompt_tokens=32",
            "data.chat_template=off",
            "data.batch_groups=8",
            "rollout.samples=8",
            "rollout.max_new_tokens=4",
            "eval.prompts=8",
            "reward.name=python:quarter + 2*python:half",
            absl::StrCat("environment.command=env PYTHONPATH=", SYNCOPATE_SOURCE_DIR, "/python ", SYNCOPATE_PYTHON,
                         " -m syncopate.worker --processes 2 ", Path("code.py")),
            absl::StrCat("run.steps=", steps)};
  }

  TempDir folder_;
};

int ExitOf(const absl::StatusOr<std::unique_ptr<Process>>& process) {
  if (!process.ok()) return -1;
  const auto exit = (*process)->WaitExit(2 * kPatience);
  EXPECT_THAT(exit, IsOk()) << (*process)->Log();
  return exit.ok() ? exit->code : -1;
}

pid_t WorkerOf(const RunHarness& run) {
  std::ifstream file(run.Path("environment.json"));
  const Json said = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  return said.is_object() ? said["pid"].get<pid_t>() : 0;
}

TEST_F(PythonRewardTest, TrainsOnWhatUserCodeSaysThoughTheWorkerIsKilledOnTheWay) {
  RunHarness run(Settings(12));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(2), IsOk());
  const pid_t worker = WorkerOf(run);
  ASSERT_GT(worker, 0);
  ::kill(worker, SIGKILL);
  EXPECT_EQ(ExitOf(process), 0);
  EXPECT_NE(WorkerOf(run), worker);
  EXPECT_EQ(run.Summary()["run"]["restarts"]["environment-0"], 1);
  ASSERT_EQ(run.Records("step").size(), 12u);
  for (const Json& step : run.Records("step")) EXPECT_FLOAT_EQ(step["reward_mean"].get<float>(), 1.25f);
  const Json evaluation = run.Records("eval").back();
  EXPECT_FLOAT_EQ(evaluation["eval_reward"].get<float>(), 1.25f);
  EXPECT_THAT(evaluation["samples"][0]["expected"].get<std::string>(), ::testing::MatchesRegex("[0-9]+"));
}

TEST_F(PythonRewardTest, AResumeWithOtherCodeIsRefused) {
  RunHarness run(Settings(2));
  EXPECT_EQ(ExitOf(run.Run()), 0);
  WriteCode("# an opinion has changed\n");
  EXPECT_NE(ExitOf(run.Resume({"run.steps=4"})), 0);
  EXPECT_THAT(run.Log("trainer-0"), AllOf(HasSubstr("FIXED_KEY"), HasSubstr("environment.digest")));
  WriteCode("");
  EXPECT_EQ(ExitOf(run.Resume({"run.steps=4"})), 0);
  EXPECT_EQ(run.LastStep(), 4);
}

}  // namespace
}  // namespace syncopate::testing
