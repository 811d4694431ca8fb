// Supervised steps in real processes: a warm start before steps on rewards, and runs with supervised steps only.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/run_expectations.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::supervised_test {
namespace {

using ::testing::HasSubstr;

TEST(SupervisedTest, AWarmStartTeachesReverseAndRewardsGoOnFromThereWithTheBitsOfTheTwin) {
  constexpr int kSupervised = 120, kSteps = 130;
  RunHarness run({absl::StrCat("train.sft_steps=", kSupervised), absl::StrCat("run.steps=", kSteps),
                  "staleness.max_staleness=0", "run.rollouters=1"});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);

  const std::vector<Json> steps = run.Records("step");
  ASSERT_EQ(steps.size(), static_cast<size_t>(kSteps));
  for (const Json& step : steps) {
    const bool supervised = step["step"] <= kSupervised;
    EXPECT_EQ(step["objective"], supervised ? "sft" : "rl");
    EXPECT_NE(step.contains("reward_mean"), supervised);
  }
  EXPECT_LT(steps[kSupervised - 1]["loss"].get<double>(), 0.3 * steps[0]["loss"].get<double>());
  const std::vector<Json> evaluations = run.Records("eval");
  ASSERT_FALSE(evaluations.empty());
  EXPECT_EQ(evaluations.front()["step"], kSupervised) << "the first version that a rollouter serves";
  EXPECT_GE(evaluations.back()["eval_exact"].get<double>(), 0.9);
  EXPECT_GT(run.Summary()["tokens"]["trained"].get<int64_t>(), 0);
}

// An untrained model is hardly ever exact, so only the supervised steps make the reward learnable. They stop long
// before the task is learned, so only the rewarded steps can complete it.
TEST(SupervisedTest, ARewardForExactAnswersAloneTakesAWarmStartThatIsMostlyWrongToTheTask) {
  constexpr int kSupervised = 16, kSteps = 90;
  RunHarness run({"run.seed=2", "reward.name=exact", absl::StrCat("train.sft_steps=", kSupervised),
                  absl::StrCat("run.steps=", kSteps), "run.rollouters=1", "eval.every_steps=15"});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  const std::vector<Json> evaluations = run.Records("eval");
  ASSERT_FALSE(evaluations.empty());
  EXPECT_EQ(evaluations.front()["step"], kSupervised);
  EXPECT_GE(evaluations.front()["eval_exact"].get<double>(), 0.05);
  EXPECT_LE(evaluations.front()["eval_exact"].get<double>(), 0.3);
  EXPECT_GE(evaluations.back()["eval_exact"].get<double>(), 0.9);
}

// The twin never stops and keeps its reference in memory; the run is killed after its supervised steps, so that its
// trainer has the reference from a checkpoint alone.
TEST(SupervisedTest, AReferencePolicyAfterAWarmStartSurvivesAKillWithTheBitsOfTheTwin) {
  constexpr int kSupervised = 10, kSteps = 60;
  for (const bool in_reward : {false, true}) {
    RunHarness run({absl::StrCat("train.sft_steps=", kSupervised), absl::StrCat("run.steps=", kSteps),
                    "staleness.max_staleness=0", "run.rollouters=1", "train.kl_coef=0.2",
                    absl::StrCat("train.kl_in=", in_reward ? "reward" : "loss"), "checkpoint.every_steps=8",
                    "checkpoint.keep=100", "eval.every_steps=0"});
    auto process = run.Run();
    ASSERT_THAT(process, IsOk());
    ASSERT_THAT(run.AwaitStep(kSupervised + 10), IsOk());
    auto trainer = run.Endpoint("trainer");
    ASSERT_THAT(trainer, IsOk());
    ASSERT_EQ(kill(static_cast<pid_t>(trainer->pid), SIGKILL), 0);
    ASSERT_THAT((*process)->WaitExit(kPatience), IsOk());
    ASSERT_LT(run.LastStep(), kSteps) << "the trainer was killed too late for this test";
    EXPECT_FALSE(std::filesystem::exists(run.Path("checkpoints/e1-s8/reference.safetensors")));
    ASSERT_TRUE(std::filesystem::exists(run.Path("checkpoints/e1-s16/reference.safetensors")));

    ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Resume(), 0));
    auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
    ASSERT_THAT(twin, IsOk());
    EXPECT_EQ(run.Digests(), *twin);
    std::map<int64_t, double> divergences;  // key: step
    for (const Json& step : run.Records("step")) {
      if (step["objective"] == "rl") divergences[step["step"]] = step["reference_kl"];
    }
    EXPECT_NEAR(divergences.at(kSupervised + 1), 0, 1e-9);
    EXPECT_GT(divergences.at(kSteps), 1e-6);
  }
}

TEST(SupervisedTest, ARunOfSupervisedStepsAloneStartsNoRollouterAndSavesItsModel) {
  RunHarness run({"train.objective=sft", "run.steps=30", "checkpoint.every_steps=10"});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  auto twin = TwinDigests(run.config(), run.overrides(), 30);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_TRUE(run.Records("eval").empty());
  std::vector<double> held_out;
  for (const Json& step : run.Records("step")) {
    EXPECT_EQ(step.contains("held_out_loss"), step["step"].get<int>() % 10 == 0);
    if (step.contains("held_out_loss")) held_out.push_back(step["held_out_loss"]);
  }
  ASSERT_EQ(held_out.size(), 3u);
  EXPECT_LT(held_out[2], 0.9 * held_out[0]);
  EXPECT_EQ(run.Summary()["eval"]["held_out_loss"]["last"], held_out[2]);
  EXPECT_EQ(run.Summary()["eval"]["held_out_loss"]["best"], held_out[2]);
  EXPECT_FALSE(std::filesystem::exists(run.Path("logs/rollouter-0.log")));
  EXPECT_TRUE(std::filesystem::exists(run.Path("checkpoints/e1-s30/model.safetensors")));
  EXPECT_EQ(run.Summary()["status"], "completed");
  EXPECT_EQ(run.Summary()["groups"]["trained"], 30 * 16);
}

TEST(SupervisedTest, AKilledAndResumedRunHasTheBitsOfOneThatWasNeverKilled) {
  constexpr int64_t kSteps = 400;
  const std::vector<std::string> overrides = {"train.objective=sft", absl::StrCat("run.steps=", kSteps),
                                              "checkpoint.every_steps=7"};
  RunHarness run(overrides);
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(20), IsOk());
  auto trainer = run.Endpoint("trainer");
  ASSERT_THAT(trainer, IsOk());
  ASSERT_EQ(kill(static_cast<pid_t>(trainer->pid), SIGKILL), 0);
  auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_NE(exit->code, 0);
  EXPECT_LT(run.LastStep(), kSteps) << "the trainer was killed too late for this test";

  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Resume(), 0));
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_EQ(run.Summary()["groups"]["trained"], kSteps * 16) << "no prompt was trained twice, none left out";
}

}  // namespace
}  // namespace syncopate::testing::supervised_test
