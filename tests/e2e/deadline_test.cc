// Answers of log-normal length and a staleness bound of one step: the outcome of a group that delays a full batch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/run_checker.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::deadline_test {
namespace {

constexpr int64_t kSteps = 40;
constexpr int64_t kBatchGroups = 8;
constexpr int64_t kBound = 1;

// The model and the prompts of bench/deadlines.py.
class DeadlineTest : public ::testing::Test {
 protected:
  DeadlineTest() {
    const std::string command =
        absl::StrCat(SYNCOPATE_PYTHON, " ", SYNCOPATE_SOURCE_DIR, "/bench/deadlines.py --make ", folder_.path());
    EXPECT_EQ(std::system(command.c_str()), 0);
  }

  void Run(RunHarness* run) {
    auto process = run->Run();
    ASSERT_THAT(process, IsOk());
    const auto exit = (*process)->WaitExit(2 * kPatience);
    ASSERT_THAT(exit, IsOk());
    ASSERT_EQ(exit->code, 0) << (*process)->Log();
    const Json summary = run->Summary();
    EXPECT_EQ(summary["groups"]["trained"], kSteps * kBatchGroups);
    EXPECT_EQ(summary["staleness"]["violations"], 0);
    EXPECT_LE(summary["staleness"]["max"], kBound);
    // The loss counts tokens by age, from the versions that the engines recorded with them.
    for (const Json& step : run->Records("step")) {
      for (const Json& age : step["ages"]) EXPECT_TRUE(age["age"] <= kBound || age["tokens"] == 0) << step;
    }
    const auto history = ReadRunHistory(run->run_dir());
    ASSERT_THAT(history, IsOk());
    const RunFindings findings = CheckRun(*history, rules_);
    EXPECT_TRUE(findings.clean()) << findings.ToString();
  }
  std::vector<std::string> Settings(const std::string& mode) const {
    return {absl::StrCat("model.path=", folder_.path(), "/model"),
            absl::StrCat("data.files=", folder_.path(), "/rows.jsonl"),
            "data.max_prompt_tokens=4",
            "data.chat_template=off",
            absl::StrCat("data.batch_groups=", kBatchGroups),
            "reward.name=format",
            "reward.format=(..)*",
            "rollout.samples=2",
            "rollout.max_new_tokens=384",
            "rollout.max_sequences=16",
            "rollout.device=cpu",
            "train.learning_rate=1e-12",
            "train.device=cpu",
            "eval.every_steps=0",
            "run.rollouters=2",
            absl::StrCat("run.steps=", kSteps),
            absl::StrCat("staleness.max_staleness=", kBound),
            "staleness.on_deadline=" + mode};
  }

  TempDir folder_;
  RunRules rules_{.batch_groups = kBatchGroups, .samples = 2, .max_staleness = kBound};
};

TEST_F(DeadlineTest, DropRevokesGroupsWhoseRolloutersGoOnWithOthers) {
  RunHarness run(Settings("drop"));
  ASSERT_NO_FATAL_FAILURE(Run(&run));
  const Json summary = run.Summary();
  EXPECT_GT(summary["groups"]["dropped"]["past_deadline"], 0) << summary["groups"];
  EXPECT_EQ(summary["tokens"]["masked"], 0);
  for (const Json& rollouter : summary["rollouters"]) EXPECT_GT(rollouter["groups"], 0) << rollouter;
}

TEST_F(DeadlineTest, MaskTrainsEveryAnswerAndNoTokenBeyondTheBound) {
  rules_.masks_beyond_bound = true;
  RunHarness run(Settings("mask"));
  ASSERT_NO_FATAL_FAILURE(Run(&run));
  const Json summary = run.Summary();
  EXPECT_GT(summary["tokens"]["masked"], 0) << summary["tokens"];
  for (const auto& [reason, count] : summary["groups"]["dropped"].items()) EXPECT_EQ(count, 0) << reason;
  int64_t masked = 0;
  for (const Json& step : run.Records("step")) {
    masked += step["masked_tokens"].get<int64_t>();
    EXPECT_EQ(step["masked_tokens"] > 0, step["trained_token_ratio"] < 1) << step;
  }
  EXPECT_EQ(masked, summary["tokens"]["masked"]);
}

}  // namespace
}  // namespace syncopate::testing::deadline_test
