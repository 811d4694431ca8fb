// Trainer and rollouters that take turns on the device that they share (run.share_gpu), here the CPU of one machine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::turns_test {
namespace {

using ::testing::HasSubstr;

// The sum of a counter of rollouter 0 over the kinds that are not "other"; -1 if it cannot be read.
int64_t ReadYielded(const RunHarness& run, const std::string& kind) {
  auto endpoint = run.Endpoint("rollouter");
  auto text = endpoint.ok() ? HttpGet(endpoint->metrics, "/metrics") : endpoint.status();
  const std::string name = absl::StrCat("syncopate_yielded_sequences_total{kind=\"", kind, "\"} ");
  const size_t begin = text.ok() ? text->find(name) : std::string::npos;
  return begin == std::string::npos ? -1 : std::stoll(text->substr(begin + name.size()));
}

// Strictly on-policy no answer is under way when a turn begins, so the twin knows nothing of turns.
TEST(TurnsTest, StrictlyOnPolicyARunInTurnsHasTheBitsOfTheTwin) {
  constexpr int64_t kFewSteps = 15;
  RunHarness run(
      {"run.share_gpu=true", "staleness.max_staleness=0", "run.seed=3", absl::StrCat("run.steps=", kFewSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto twin = TwinDigests(run.config(), run.overrides(), kFewSteps);
  ASSERT_THAT(twin, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
}

// The small demo, with answers under way at every turn: some are swapped, the others are computed again.
TEST(TurnsTest, ARunInTurnsLearnsAsARunApart) {
  constexpr int64_t kSteps = 80;
  RunHarness run({"run.share_gpu=true", "rollout.host_kv_memory=0.0001", absl::StrCat("run.steps=", kSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  EXPECT_TRUE(Eventually(2 * kPatience, [&] {
    return ReadYielded(run, "swap") > 0 && ReadYielded(run, "recompute") > 0;
  })) << run.Log("rollouter-0");
  auto exit = (*process)->WaitExit(3 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(*exit, ExitStatus{}) << (*process)->Log();
  const Json summary = run.Summary();
  EXPECT_EQ(summary["status"], "completed");
  EXPECT_GE(summary["eval"]["best"], 0.95) << summary["eval"];
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  EXPECT_EQ(summary["syncs"]["failed"], 0) << summary["syncs"];
  for (const auto& [reason, count] : summary["groups"]["dropped"].items()) EXPECT_EQ(count, 0) << reason;
  const std::vector<Json> steps = run.Records("step");
  ASSERT_EQ(steps.size(), static_cast<size_t>(kSteps));
  for (const Json& step : steps) {
    EXPECT_GT(step["turn_drain_seconds"], 0) << step;
    EXPECT_GT(step["turn_moved_bytes"], 0) << step;
  }
  EXPECT_THAT(run.Log("trainer-0"), ::testing::Not(HasSubstr("it is evicted")));
}

// Its card is free when it is dead, and its successor is told whose turn it is.
TEST(TurnsTest, ARolloutersDeathDelaysTurnsAndLosesNothing) {
  constexpr int64_t kSteps = 30;
  RunHarness run({"run.share_gpu=true", absl::StrCat("run.steps=", kSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(5), IsOk());
  auto killed = run.Endpoint("rollouter", 1);
  ASSERT_THAT(killed, IsOk());
  ASSERT_EQ(kill(killed->pid, SIGKILL), 0);
  ASSERT_THAT(run.Endpoint("rollouter", 1, killed->pid), IsOk());
  auto exit = (*process)->WaitExit(3 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  const Json summary = run.Summary();
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  EXPECT_EQ(summary["groups"]["duplicate"], 0);
}

// Rollouters keep their device, or have given it up and wait; the next trainer, which first repeats what was logged,
// tells them whose turn it is.
TEST(TurnsTest, ATrainersDeathLosesNothingAndChangesNoBit) {
  constexpr int64_t kSteps = 25;
  RunHarness run({"run.share_gpu=true", "staleness.max_staleness=0", absl::StrCat("run.steps=", kSteps)});
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  std::vector<std::unique_ptr<Process>> rollouters;
  for (int64_t index : {0, 1}) {
    auto rollouter = run.LaunchDaemon("rollouter", index);
    ASSERT_THAT(rollouter, IsOk());
    rollouters.push_back(*std::move(rollouter));
  }
  auto trainer = run.StartDaemon("trainer", 0, {"run.resume=false"});
  ASSERT_THAT(trainer, IsOk());
  ASSERT_THAT(run.AwaitStep(8), IsOk());
  (*trainer)->Kill();
  ASSERT_THAT((*trainer)->WaitExit(kPatience), IsOk());
  trainer = run.StartDaemon("trainer", 0, {"run.resume=true"});
  ASSERT_THAT(trainer, IsOk());
  auto exit = (*trainer)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*trainer)->Log();
  EXPECT_THAT((*trainer)->Log(), ::testing::Not(HasSubstr("it is evicted")));
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
}

TEST(TurnsTest, TheModeOfATrainerThatTakesTurnsCannotBeSet) {
  RunHarness run({"run.share_gpu=true", "run.steps=100000"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(2), IsOk());
  auto answer = run.Ctl({"mode", "trainer-0", "--to", "trainer"});
  ASSERT_THAT(answer, IsOk());
  EXPECT_NE(answer->code, 0);
  EXPECT_THAT(answer->output, HasSubstr("takes turns on its device by itself"));
}

}  // namespace
}  // namespace syncopate::testing::turns_test
