// Effects that show only after hundreds or thousands of steps. The tests take many minutes: `scripts/test.sh --long`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::long_run_test {
namespace {

using ::testing::IsEmpty;

// Returns a figure of a process's memory; 0 if the process is gone.
int64_t ResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  int64_t pages = 0, resident = 0;
  return file >> pages >> resident ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

// Reverse of six symbols: learned after about 80 steps and trained on for five times as many.
class RetentionTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RetentionTest, ::testing::Range(0, 10));

TEST_P(RetentionTest, WhatWasLearnedIsNotUnlearnedAndNoAlarmStands) {
  RunHarness run({absl::StrCat("run.seed=", GetParam()), "run.steps=600", "data.length=6", "rollout.max_new_tokens=7",
                  "staleness.max_staleness=4"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(absl::Minutes(10));
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(*exit, ExitStatus{}) << (*process)->Log();

  double lowest = 2;
  int64_t learned_at = -1;
  std::string curve;  // "step:exact" for each evaluation, for a reader of the XML
  for (const Json& evaluation : run.Records("eval")) {
    const double exact = evaluation["eval_exact"];
    absl::StrAppend(&curve, curve.empty() ? "" : " ", evaluation["step"].get<int64_t>(), ":", exact);
    if (learned_at < 0 && exact >= 0.95) learned_at = evaluation["step"];
    if (learned_at >= 0) lowest = std::min(lowest, exact);
    EXPECT_THAT(evaluation["alarms"], IsEmpty()) << evaluation;
  }
  RecordProperty("curve", curve);
  RecordProperty("learned_at", absl::StrCat(learned_at));
  RecordProperty("lowest", absl::StrCat(lowest));
  EXPECT_TRUE(learned_at > 0 && learned_at <= 200) << learned_at;
  EXPECT_GE(lowest, 0.9);
  for (const Json& step : run.Records("step")) EXPECT_THAT(step["alarms"], IsEmpty()) << step;
}

// The events of the weight syncs that failed, one a line.
std::string FailedSyncs(const RunHarness& run) {
  const auto events = RunCommand("syncopate", {"events", run.run_dir(), "--kind", "sync"});
  if (!events.ok()) return events.status().ToString();
  std::string failed;
  for (absl::string_view line : absl::StrSplit(events->output, '\n')) {
    const bool good = absl::StrContains(line, "\"result\":\"ok\"") ||
                      absl::StrContains(line, "\"result\":\"relabelled\"") ||
                      absl::StrContains(line, "\"result\":\"superseded\"");
    if (!good) absl::StrAppend(&failed, line, "\n");
  }
  return failed;
}

TEST(LongRunTest, TheSumsOfSixteenThousandStepsAreThoseOfTheirLines) {
  constexpr int64_t kSteps = 16000, kGroups = 2;
  RunHarness run({absl::StrCat("run.steps=", kSteps), absl::StrCat("data.batch_groups=", kGroups), "rollout.samples=4",
                  "eval.every_steps=1000", "eval.prompts=16", "checkpoint.every_steps=1000"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(absl::Minutes(50));
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(*exit, ExitStatus{}) << (*process)->Log();

  const std::vector<Json> steps = run.Records("step");
  ASSERT_EQ(steps.size(), static_cast<size_t>(kSteps));
  int64_t tokens = 0;
  double staleness_max = 0;
  for (const Json& step : steps) {
    tokens += step["trained_tokens"].get<int64_t>();
    staleness_max = std::max(staleness_max, step["staleness_max"].get<double>());
  }
  const Json summary = run.Summary();
  ASSERT_TRUE(summary.is_object());
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_EQ(summary["groups"]["trained"], kSteps * kGroups);
  EXPECT_EQ(summary["groups"]["duplicate"], 0);
  EXPECT_EQ(summary["tokens"]["trained"], tokens);
  EXPECT_EQ(summary["staleness"]["max"], staleness_max);
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  // Each of the two rollouters installs most versions; it may skip one for a newer one.
  EXPECT_GT(summary["syncs"]["count"], kSteps);
  EXPECT_EQ(summary["syncs"]["failed"], 0) << FailedSyncs(run);
}

// Steps are small, so that thousands take minutes: the memory that they free is used again.
TEST(LongRunTest, TheTrainersMemoryIsThatOfItsFirstStepsAfterEightThousand) {
  RunHarness run({"run.steps=8000", "data.batch_groups=2", "rollout.samples=4", "eval.every_steps=1000",
                  "eval.prompts=16", "checkpoint.every_steps=1000"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto endpoint = run.Endpoint("trainer");
  ASSERT_THAT(endpoint, IsOk()) << (*process)->Log();
  ASSERT_THAT(run.AwaitStep(500, absl::Minutes(10)), IsOk());
  const int64_t before = ResidentBytes(static_cast<pid_t>(endpoint->pid));
  ASSERT_GT(before, 0);
  int64_t after = before;
  // The last measurement before the trainer ends counts.
  for (int64_t step = 1000; step < 8000; step += 100) {
    if (!run.AwaitStep(step, absl::Minutes(50)).ok()) break;
    const int64_t now = ResidentBytes(static_cast<pid_t>(endpoint->pid));
    if (now > 0) after = now;
  }
  auto exit = (*process)->WaitExit(absl::Minutes(50));
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(*exit, ExitStatus{}) << (*process)->Log();
  RecordProperty("mebibytes_at_500", absl::StrCat(before >> 20));
  RecordProperty("mebibytes_at_8000", absl::StrCat(after >> 20));
  EXPECT_LE(static_cast<double>(after), 1.2 * static_cast<double>(before));
}

}  // namespace
}  // namespace syncopate::testing::long_run_test
