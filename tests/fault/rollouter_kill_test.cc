// Rollouters that die, join late and leave.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fault/continued_answers.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::rollouter_kill_test {
namespace {

constexpr absl::Duration kWorksAgainWithin = absl::Seconds(10);
// The promise is 1 s after the stream breaks; the rest is for a machine that runs other tests at the same time.
constexpr absl::Duration kReissuedWithin = absl::Seconds(3);
constexpr int kKills = 10;

struct Worst {
  absl::Duration reissued, works;
};

// Kills one rollouter with SIGKILL at a random moment, then expects all that must follow.
void KillOne(const RunHarness& run, const RunWatch& watch, Dice& dice, Worst* worst) {
  const int64_t victim = dice.Between(0, 1);
  auto before = watch.AwaitWork(victim);
  ASSERT_THAT(before, IsOk());
  ASSERT_THAT(watch.AwaitRandomMoment(dice), IsOk());
  auto endpoint = run.Endpoint("rollouter", victim);
  ASSERT_THAT(endpoint, IsOk());
  Stopwatch since_kill;
  ASSERT_EQ(::kill(static_cast<pid_t>(endpoint->pid), SIGKILL), 0);
  // Leases end with the stream: once the stream is gone, other rollouters get the leases.
  EXPECT_TRUE(Eventually(kPatience, [&] {
    auto stream = watch.Stream(victim);
    return absl::IsNotFound(stream.status()) || (stream.ok() && stream->incarnation() != *before);
  }));
  worst->reissued = std::max(worst->reissued, since_kill.Elapsed());
  ASSERT_THAT(run.Endpoint("rollouter", victim, static_cast<pid_t>(endpoint->pid)), IsOk());
  Stopwatch since_start;
  ASSERT_THAT(watch.AwaitWork(victim, *before), IsOk());
  worst->works = std::max(worst->works, since_start.Elapsed());
}

TEST(RollouterKillTest, TenKillsInOneRunLoseNothingAndEachTimeANewOneTakesOver) {
  RunHarness run(EndlessRun({"eval.every_steps=15", "eval.prompts=32"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  RunWatch watch(&run);
  Dice dice(1);
  Worst worst{};
  for (int i = 0; i < kKills; ++i) {
    SCOPED_TRACE(absl::StrCat("kill ", i));
    ASSERT_NO_FATAL_FAILURE(KillOne(run, watch, dice, &worst));
  }
  Report("stream and leases of a killed rollouter gone, worst", worst.reissued);
  Report("new rollouter ready to first accepted group, worst", worst.works);
  EXPECT_LE(worst.reissued, kReissuedWithin);
  EXPECT_LE(worst.works, kWorksAgainWithin);

  ASSERT_THAT(watch.AwaitMoreSteps(5), IsOk());
  ASSERT_THAT(watch.Stop(), IsOk());
  auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  const RunFindings findings = Judge(run);
  EXPECT_THAT(findings, IsClean());
  EXPECT_GT(findings.reissued, 0) << "no kill hit a rollouter that held a lease";
  const Json summary = run.Summary();
  EXPECT_EQ(summary["groups"]["duplicate"], 0);
  // The work of the killed rollouters counts: the two that remain cannot have made all trained tokens.
  EXPECT_GE(summary["tokens"]["generated"].get<int64_t>(), summary["tokens"]["trained"].get<int64_t>());
  EXPECT_EQ(summary["rollouters"].size(), 2u + kKills);
  const Json restarts = summary["run"]["restarts"];
  EXPECT_EQ(restarts["rollouter-0"].get<int>() + restarts["rollouter-1"].get<int>(), kKills);
  EXPECT_EQ(restarts["trainer-0"], 0);
}

TEST(RollouterKillTest, OneThatJoinsLateGetsTheCurrentVersionAndWorkAndTheFirstMayLeave) {
  RunHarness run(EndlessRun());
  RunWatch watch(&run);
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto trainer = run.StartDaemon("trainer");
  ASSERT_THAT(trainer, IsOk());
  auto first = run.StartDaemon("rollouter", 0);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(watch.AwaitMoreSteps(20), IsOk());

  auto late = run.StartDaemon("rollouter", 1);
  ASSERT_THAT(late, IsOk());
  Stopwatch since_start;
  ASSERT_THAT(watch.AwaitWork(1), IsOk());
  Report("late joiner ready to first accepted group", since_start.Elapsed());
  EXPECT_LE(since_start.Elapsed(), kWorksAgainWithin);
  auto stream = watch.Stream(1);
  ASSERT_THAT(stream, IsOk());
  EXPECT_GE(stream->serving().step(), 20 - RulesOfEndlessRun().max_staleness);

  (*first)->Terminate();
  auto left = (*first)->WaitExit(kPatience);
  ASSERT_THAT(left, IsOk());
  EXPECT_EQ(left->code, 0) << (*first)->Log();
  auto member = watch.Member(0);
  ASSERT_THAT(member, IsOk());
  EXPECT_EQ(member->state(), v1::MEMBER_STATE_LEFT);
  EXPECT_TRUE(absl::IsNotFound(watch.Stream(0).status()));

  ASSERT_THAT(watch.AwaitMoreSteps(20), IsOk());
  ASSERT_THAT(watch.Stop(), IsOk());
  auto exit = (*trainer)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*trainer)->Log();
  EXPECT_THAT(Judge(run), IsClean());
}

TEST(RollouterKillTest, AnswersThatWereContinuedAreThoseOfAnUndisturbedRun) {
  constexpr int64_t kSteps = 6;
  RunHarness undisturbed(OverridesOfLongAnswers());
  auto calm = undisturbed.Run();
  ASSERT_THAT(calm, IsOk());
  RunWatch calm_watch(&undisturbed);
  ASSERT_THAT(calm_watch.AwaitMoreSteps(kSteps), IsOk());
  ASSERT_THAT(calm_watch.Stop(), IsOk());
  ASSERT_THAT((*calm)->WaitExit(kPatience), IsOk());

  RunHarness run(OverridesOfLongAnswers());
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  RunWatch watch(&run);
  // One of the two is killed again and again, as soon as it has reported tokens.
  for (int64_t kill = 1; kill <= 3; ++kill) {
    SCOPED_TRACE(absl::StrCat("kill ", kill));
    ASSERT_TRUE(Eventually(kPatience, [&] { return ReadTrainerMetric(run, "syncopate_unfinished_answer_bytes") > 0; }));
    auto endpoint = run.Endpoint("rollouter", kill % 2);
    ASSERT_THAT(endpoint, IsOk());
    ASSERT_EQ(::kill(static_cast<pid_t>(endpoint->pid), SIGKILL), 0);
    ASSERT_THAT(run.Endpoint("rollouter", kill % 2, static_cast<pid_t>(endpoint->pid)), IsOk());
    ASSERT_THAT(watch.AwaitMoreSteps(1), IsOk());
  }
  ASSERT_THAT(watch.AwaitMoreSteps(1), IsOk());
  EXPECT_GT(ReadTrainerMetric(run, "syncopate_leases_continued_total"), 0);
  EXPECT_GT(ReadTrainerMetric(run, "syncopate_kept_tokens_total"), 8);
  ASSERT_THAT(watch.Stop(), IsOk());
  ASSERT_THAT((*process)->WaitExit(kPatience), IsOk());

  EXPECT_GE(ExpectSameAnswers(run, undisturbed), 6);
  EXPECT_THAT(Judge(run, {.batch_groups = 2, .samples = 4, .max_staleness = 4}), IsClean());
}

}  // namespace
}  // namespace syncopate::testing::rollouter_kill_test
