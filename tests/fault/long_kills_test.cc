// A rollouter that lives for seconds, for minutes: `scripts/test.sh --long`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "tests/fault/continued_answers.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::long_kills_test {
namespace {

constexpr absl::Duration kLives = absl::Seconds(5);
constexpr int kKills = 24;

TEST(LongKillsTest, ARollouterThatDiesEveryFiveSecondsForTwoMinutesLosesNoAcknowledgedToken) {
  RunHarness run(OverridesOfLongAnswers());
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  RunWatch watch(&run);
  ASSERT_THAT(watch.AwaitMoreSteps(1), IsOk());
  for (int kill = 1; kill <= kKills; ++kill) {
    SCOPED_TRACE(absl::StrCat("kill ", kill));
    const Stopwatch since;
    ASSERT_TRUE(Eventually(kPatience, [&] { return since.Elapsed() >= kLives; }));
    auto endpoint = run.Endpoint("rollouter", 1);
    ASSERT_THAT(endpoint, IsOk());
    ASSERT_EQ(::kill(static_cast<pid_t>(endpoint->pid), SIGKILL), 0);
    ASSERT_THAT(run.Endpoint("rollouter", 1, static_cast<pid_t>(endpoint->pid)), IsOk());
  }
  ASSERT_THAT(watch.AwaitMoreSteps(1), IsOk());
  const int64_t continued = ReadTrainerMetric(run, "syncopate_leases_continued_total");
  const int64_t kept = ReadTrainerMetric(run, "syncopate_kept_tokens_total");
  RecordProperty("leases_continued", absl::StrCat(continued));
  RecordProperty("kept_tokens", absl::StrCat(kept));
  EXPECT_GE(continued, kKills / 2);
  EXPECT_GT(kept, 8 * continued);
  const int64_t steps = watch.Step();
  ASSERT_THAT(watch.Stop(), IsOk());
  ASSERT_THAT((*process)->WaitExit(kPatience), IsOk());

  // Both runs lease their prompts in the same order.
  RunHarness undisturbed(OverridesOfLongAnswers());
  auto calm = undisturbed.Run();
  ASSERT_THAT(calm, IsOk());
  RunWatch calm_watch(&undisturbed);
  ASSERT_THAT(calm_watch.AwaitMoreSteps(steps, absl::Minutes(10)), IsOk());
  ASSERT_THAT(calm_watch.Stop(), IsOk());
  ASSERT_THAT((*calm)->WaitExit(kPatience), IsOk());
  EXPECT_GE(ExpectSameAnswers(run, undisturbed), 2 * steps);
  EXPECT_THAT(Judge(run, {.batch_groups = 2, .samples = 4, .max_staleness = 4}), IsClean());
}

}  // namespace
}  // namespace syncopate::testing::long_kills_test
