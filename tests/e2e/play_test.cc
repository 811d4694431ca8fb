// Runs whose samples have several turns, with environments of users' Python and with text ones that are built in.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/environment_worker.h"
#include "tests/support/run_expectations.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::play_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kCode[] = R"(
import asyncio
from syncopate import Turn, environment

@environment("hot_cold")
class HotCold:
    """A number from 0 to 9 is to be found; the tool is slow, and rejects a quarter of the samples."""
    async def reset(self, task, seed):
        self.seed = seed
        self.number = int(task["ground_truth"])
        assert task["prompt"] == "guess" and isinstance(seed, int)
    async def step(self, action):
        await asyncio.sleep(0.002)
        if self.seed % 4 == 0:
            return Turn(reward=100.0, rejected=True)
        digits = [one for one in action.text if one.isdigit()]
        if digits and int(digits[-1]) == self.number:
            return Turn(reward=1.0, done=True)
        return Turn("hot" if digits else "no digit", reward=-0.1)

@environment("broken")
class Broken:
    async def reset(self, task, seed): pass
    async def step(self, action): raise RuntimeError("the tool is broken")
)";

std::string Worker(const std::string& code) {
  return absl::StrCat("environment.command=env PYTHONPATH=", SYNCOPATE_SOURCE_DIR, "/python ", SYNCOPATE_PYTHON,
                      " -m syncopate.worker ", code);
}

int GetExit(const absl::StatusOr<std::unique_ptr<Process>>& process) {
  if (!process.ok()) return -1;
  const auto exit = (*process)->WaitExit(2 * kPatience);
  EXPECT_THAT(exit, IsOk()) << (*process)->Log();
  return exit.ok() ? exit->code : -1;
}

// The twin plays the game that is built in, the run the one in Python: the same answers give the same weights.
TEST(PlayTest, AGameInPythonGivesTheBitsOfTheOneThatIsBuiltIn) {
  constexpr int64_t kFewSteps = 6;
  RunHarness run({"staleness.max_staleness=0", "run.seed=3", "run.rollouters=2", "data.task=guess",
                  "environment.name=guess", Worker("-m syncopate.games"), "environment.workers=2",
                  "reward.name=environment", "rollout.max_turns=5", "rollout.max_total_tokens=18",
                  "model.max_position_embeddings=20", absl::StrCat("run.steps=", kFewSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto twin = TwinDigests(run.config(), run.overrides(), kFewSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(GetExit(process), 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_THAT(run.Log("rollouter-0"), AllOf(HasSubstr("environment.sock, which has 2 environments"),
                                            HasSubstr("environment-1.sock, which has 2 environments")));
}

// Runs with a model of text.
class TextPlayTest : public ::testing::Test {
 protected:
  TextPlayTest() {
    std::ofstream rows(Path("rows.jsonl"));
    for (int i = 0; i < 40; ++i) {
      rows << R"({"prompt": "guess", "answer": ")" << i % 10 << "\"}\n";
    }
    rows.close();
    std::ofstream(Path("code.py")) << kCode;
    const std::string command = absl::StrCat(SYNCOPATE_PYTHON, " ", SYNCOPATE_SOURCE_DIR, "/scripts/tiny_model.py ",
                                             Path("model"), " --hidden 32 --layers 1 --text ", Path("rows.jsonl"));
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }
  std::vector<std::string> Settings(const std::string& environment, int64_t steps) const {
    return {"model.path=" + Path("model"),
            "data.files=" + Path("rows.jsonl"),
            "data.max_prompt_tokens=32",
            "data.batch_groups=4",
            "rollout.samples=4",
            "rollout.max_new_tokens=6",
            "rollout.max_turns=3",
            "rollout.max_total_tokens=160",
            "train.device=cpu",
            "rollout.device=cpu",
            "eval.prompts=4",
            "reward.name=environment",
            "environment.name=" + environment,
            absl::StrCat("run.steps=", steps)};
  }

  TempDir folder_;
};

// A minute of the example that `LongLearningTest` runs to its end.
TEST(PlayTest, AMinuteOfTheBuiltInGameBringsMoreRewardThanItsBeginning) {
  constexpr size_t kCompared = 40;
  RunHarness run({"run.steps=240", "eval.every_steps=0"}, "guess.yaml");
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0, 4 * kPatience));
  std::vector<double> rewards;
  for (const Json& step : run.Records("step")) {
    if (step["objective"] == "rl") rewards.push_back(step["reward_mean"]);
  }
  ASSERT_GE(rewards.size(), 2 * kCompared);
  const double first = std::accumulate(rewards.begin(), rewards.begin() + kCompared, 0.0) / kCompared;
  const double last = std::accumulate(rewards.end() - kCompared, rewards.end(), 0.0) / kCompared;
  EXPECT_GE(last, first + 0.06) << "from " << first;
}

TEST_F(TextPlayTest, TheCalculatorIsPlayedByAModelOfText) {
  constexpr int64_t kFewSteps = 4;
  std::vector<std::string> settings = Settings("calculator", kFewSteps);
  settings.insert(settings.end(), {"staleness.max_staleness=0", "run.seed=3"});
  RunHarness run(settings);
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto twin = TwinDigests(run.config(), run.overrides(), kFewSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(GetExit(process), 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
}

// The run plays in Python, the twin what is built in; rows name one environment, the others have environment.name.
TEST_F(TextPlayTest, RowsNameTheirEnvironmentAndBothSidesPlayThemWithTheSameTokens) {
  constexpr int64_t kFewSteps = 4;
  std::ofstream rows(Path("rows.jsonl"));
  for (int i = 0; i < 40; ++i) {
    const char* environment = i % 2 == 0 ? R"(, "environment": "guess")" : "";
    rows << R"({"prompt": "guess", "answer": ")" << 1 + i % 9 << '"' << environment << "}\n";
  }
  rows.close();
  std::vector<std::string> settings = Settings("calculator", kFewSteps);
  settings.insert(settings.end(), {"staleness.max_staleness=0", "run.seed=3"});
  std::vector<std::string> with_worker = settings;
  with_worker.push_back(Worker("-m syncopate.games"));
  RunHarness run(with_worker);
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto twin = TwinDigests(run.config(), run.overrides(), kFewSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(GetExit(process), 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
}

TEST_F(TextPlayTest, TrainsInTurnsWithUserCodeThoughTheWorkerIsKilledOnTheWay) {
  std::vector<std::string> settings = Settings("hot_cold", 12);
  settings.push_back(Worker(Path("code.py")));
  RunHarness run(settings);
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(2), IsOk());
  const pid_t worker = GetWorker(run);
  ASSERT_GT(worker, 0);
  ::kill(worker, SIGKILL);
  EXPECT_EQ(GetExit(process), 0) << (*process)->Log();
  EXPECT_EQ(run.Summary()["run"]["restarts"]["environment-0"], 1);
  ASSERT_EQ(run.Records("step").size(), 12u);
  EXPECT_FALSE(run.Records("eval").empty()) << "an evaluation plays, too";
  int64_t rejected = 0;
  for (const Json& step : run.Records("step")) {
    rejected += step["rejected_samples"].get<int64_t>();
    EXPECT_GE(step["turns_mean"].get<double>(), 1);
    EXPECT_GE(step["environment_seconds_mean"].get<double>(), 0.002);
    EXPECT_LE(step["reward_max"].get<double>(), 1) << "what was rejected has no part in it";
  }
  EXPECT_GT(rejected, 0);
}

constexpr char kDesk[] = R"(
from syncopate import Turn, environment

@environment("desk", tools=[{"type": "function", "function": {"name": "look", "description": "looks",
                                                              "parameters": {"type": "object", "properties": {}}}}])
class Desk:
    async def reset(self, task, seed):
        assert task["tools"][0]["function"]["name"] == "look"
    async def step(self, action):
        if action.turn > 1: return Turn(reward=0.5, done=True)
        if [call.name for call in action.tool_calls] == ["look"]: return Turn(tool_results=["seen"], reward=1.0)
        return Turn("look!", done=True)
)";

// Supervised steps teach the one call; then the policy calls the tool, and reads its result.
TEST_F(TextPlayTest, ThePolicyReadsTheToolsOfItsEnvironmentCallsThemAndReadsWhatTheyGive) {
  constexpr int kSupervised = 120, kSteps = 124;
  std::ofstream rows(Path("rows.jsonl"));
  for (int i = 0; i < 16; ++i) {
    rows
        << R"({"prompt": "guess", "answer": "1", "call": "<tool_call>{\"name\": \"look\", \"arguments\": {}}</tool_call>"})"
        << "\n";
  }
  rows.close();
  std::ofstream(Path("code.py")) << kDesk;
  const std::string command =
      absl::StrCat(SYNCOPATE_PYTHON, " ", SYNCOPATE_SOURCE_DIR, "/scripts/tiny_model.py ", Path("model"),
                   " --hidden 32 --layers 1 --tools --vocabulary 400 --text ", Path("rows.jsonl"));
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::vector<std::string> settings = Settings("desk", kSteps);
  settings.insert(settings.end(),
                  {Worker(Path("code.py")), absl::StrCat("train.sft_steps=", kSupervised), "data.response_field=call",
                   "rollout.max_new_tokens=40", "rollout.max_total_tokens=240", "data.max_prompt_tokens=200",
                   "train.learning_rate=5e-3", "eval.every_steps=0"});
  RunHarness run(settings);
  auto process = run.Run();
  ASSERT_EQ(GetExit(process), 0) << (process.ok() ? (*process)->Log() : "");
  EXPECT_THAT(run.Log("trainer-0"), HasSubstr("tools of the environment desk: 1"));
  const std::vector<Json> steps = run.Records("step");
  ASSERT_EQ(steps.size(), static_cast<size_t>(kSteps));
  // Without a call a sample has 0, with one it has 1.5.
  EXPECT_GE(steps[kSupervised]["reward_mean"].get<double>(), 0.75) << steps[kSupervised];
  EXPECT_GE(steps[kSupervised]["turns_mean"].get<double>(), 1.5) << steps[kSupervised];
}

TEST_F(TextPlayTest, AnEnvironmentThatAlwaysFailsSaysWhereAndEndsTheRun) {
  std::vector<std::string> settings = Settings("broken", 12);
  settings.insert(settings.end(), {Worker(Path("code.py")), "reward.max_failures=8"});
  RunHarness run(settings);
  auto process = run.Run();
  EXPECT_EQ(GetExit(process), 1);
  const std::string where = "RuntimeError: the tool is broken (code.py:";
  EXPECT_THAT((*process)->Log(), AllOf(HasSubstr("REWARD_FAILED"), HasSubstr(where)));
  EXPECT_THAT(run.Log("environment-0"), HasSubstr("Traceback"));
}

TEST_F(TextPlayTest, AnEnvironmentThatTheWorkerDoesNotHaveIsRefusedAtTheStartWithThoseThatItHas) {
  std::vector<std::string> settings = Settings("hot_cod", 2);
  settings.push_back(Worker(Path("code.py")));
  RunHarness run(settings);
  auto process = run.Run();
  EXPECT_EQ(GetExit(process), 1);
  EXPECT_THAT((*process)->Log(), HasSubstr("has no environment named hot_cod; it has broken, hot_cold"));
  EXPECT_THAT((*process)->Log(), Not(HasSubstr("killed by signal"))) << "each rollouter ends by itself";
}

TEST_F(TextPlayTest, ATemplateThatCannotBeExtendedIsRefusedAtTheStart) {
  std::ofstream(Path("model/chat_template.jinja")) << "{{ messages[-1]['content'] }}";
  RunHarness run(Settings("calculator", 2));
  auto process = run.Run();
  EXPECT_EQ(GetExit(process), 1);
  EXPECT_THAT((*process)->Log(), HasSubstr("TEMPLATE_NOT_EXTENDABLE"));
}

}  // namespace
}  // namespace syncopate::testing::play_test
