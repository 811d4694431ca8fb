// A synchronizer that dies and restarts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/wire/codec.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::synchronizer_kill_test {
namespace {

constexpr absl::Duration kReregisteredWithin = absl::Seconds(5);
constexpr int kKills = 5;

PolicyVersion Newest(const RunWatch& watch) {
  auto status = watch.Synchronizer();
  return status.ok() ? wire::FromProto(status->newest()) : PolicyVersion{};
}

bool AllHere(const RunWatch& watch, int32_t rollouters) {
  auto status = watch.Synchronizer();
  return status.ok() && status->trainers_alive() == 1 && status->rollouters_alive() == rollouters;
}

TEST(SynchronizerKillTest, EverybodyComesBackWithinFiveSecondsAndVersionsGoOn) {
  RunHarness run(EndlessRun());
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  RunWatch watch(&run);
  Dice dice(3);
  absl::Duration worst;
  auto trainer = run.Endpoint("trainer");
  ASSERT_THAT(trainer, IsOk());
  for (int i = 0; i < kKills; ++i) {
    SCOPED_TRACE(absl::StrCat("kill ", i));
    ASSERT_THAT(watch.AwaitRandomMoment(dice), IsOk());
    ASSERT_TRUE(Eventually(kPatience, [&] { return AllHere(watch, 2); }));
    const PolicyVersion before = Newest(watch);
    auto synchronizer = run.Endpoint("synchronizer");
    ASSERT_THAT(synchronizer, IsOk());
    ASSERT_EQ(::kill(static_cast<pid_t>(synchronizer->pid), SIGKILL), 0);
    ASSERT_THAT(run.Endpoint("synchronizer", 0, static_cast<pid_t>(synchronizer->pid)), IsOk());
    Stopwatch since_start;
    EXPECT_TRUE(Eventually(kPatience, [&] { return AllHere(watch, 2); }));
    worst = std::max(worst, since_start.Elapsed());
    const PolicyVersion after = Newest(watch);
    EXPECT_GE(after, before);
    EXPECT_EQ(after.epoch, 1) << "a synchronizer that dies causes no new epoch";
    EXPECT_TRUE(Eventually(kPatience, [&] { return Newest(watch) > after; }));
    for (int64_t rollouter : {0, 1}) ASSERT_THAT(watch.AwaitWork(rollouter), IsOk());
  }
  Report("synchronizer ready to everybody registered again, worst", worst);
  EXPECT_LE(worst, kReregisteredWithin);

  ASSERT_THAT(watch.Stop(), IsOk());
  auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_THAT(Judge(run), IsClean());
  const Json restarts = run.Summary()["run"]["restarts"];
  EXPECT_EQ(restarts["synchronizer-0"], kKills);
  EXPECT_EQ(restarts["trainer-0"].get<int>() + restarts["rollouter-0"].get<int>() + restarts["rollouter-1"].get<int>(),
            0);
}

TEST(SynchronizerKillTest, AnEpochIsNeverGivenTwiceEvenIfTheTrainerDiesWithIt) {
  RunHarness run(EndlessRun());
  RunWatch watch(&run);
  auto rollouter = run.LaunchDaemon("rollouter");
  ASSERT_THAT(rollouter, IsOk());
  for (int life = 1; life <= 3; ++life) {
    auto synchronizer = run.StartDaemon("synchronizer");
    ASSERT_THAT(synchronizer, IsOk());
    auto trainer = run.StartDaemon("trainer", 0, {life > 1 ? "run.resume=true" : "run.resume=false"});
    ASSERT_THAT(trainer, IsOk());
    auto status = watch.Synchronizer();
    ASSERT_THAT(status, IsOk());
    EXPECT_EQ(status->epoch(), life);
    // The trainer repeats its logged takes first; then it publishes anew.
    EXPECT_TRUE(Eventually(kPatience, [&] { return Newest(watch).epoch == life; }));
    ASSERT_THAT(watch.AwaitMoreSteps(5), IsOk());
    (*synchronizer)->Kill();
    (*trainer)->Kill();
    ASSERT_THAT((*synchronizer)->WaitExit(kPatience), IsOk());
    ASSERT_THAT((*trainer)->WaitExit(kPatience), IsOk());
  }
  EXPECT_TRUE((*rollouter)->Running());
  EXPECT_THAT(Judge(run), IsClean());
}

}  // namespace
}  // namespace syncopate::testing::synchronizer_kill_test
