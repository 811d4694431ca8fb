// Supervised steps in real processes: a warm start before rewards, and runs that have nothing else.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing {
namespace {

using ::testing::HasSubstr;

void ExpectEnd(absl::StatusOr<std::unique_ptr<Process>> process, int code) {
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, code) << (*process)->Log();
}

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
  EXPECT_EQ(evaluations.front()["step"], kSupervised) << "the first version that anybody serves";
  EXPECT_GE(evaluations.back()["eval_exact"].get<double>(), 0.9);
  EXPECT_GT(run.Summary()["tokens"]["trained"].get<int64_t>(), 0);
}

TEST(SupervisedTest, ARunOfSupervisedStepsAloneStartsNoRollouterAndSavesItsModel) {
  RunHarness run({"train.objective=sft", "run.steps=30", "checkpoint.every_steps=10"});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  auto twin = TwinDigests(run.config(), run.overrides(), 30);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_TRUE(run.Records("eval").empty());
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
  EXPECT_LT(run.LastStep(), kSteps) << "it was killed too late to show anything";

  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Resume(), 0));
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_EQ(run.Summary()["groups"]["trained"], kSteps * 16) << "no prompt was trained twice, none left out";
}

}  // namespace
}  // namespace syncopate::testing
