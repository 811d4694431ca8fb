#include "tools/run/monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_daemons.h"

namespace syncopate::run {
namespace {

using syncopate::testing::FakeRun;

class RunMonitorTest : public ::testing::Test {
 protected:
  std::vector<daemon::DaemonEndpoint> Endpoints() const {
    return {{"synchronizer", 0, run_.synchronizer_address(), "", 1},
            {"trainer", 0, run_.trainer_address(), "", 2},
            {"rollouter", 0, run_.rollouter_address(0), "", 3},
            {"rollouter", 1, run_.rollouter_address(1), "", 4}};
  }

  FakeRun run_;
};

TEST_F(RunMonitorTest, KnowsEveryDaemonAfterAPoll) {
  RunMonitor monitor;
  EXPECT_TRUE(monitor.Get().daemons.empty());
  monitor.SetEndpoints(Endpoints());
  // The second poll begins when the result of the first is stored.
  ASSERT_TRUE(run_.rollouters[1].book.WaitFor("GetStatus", 2));
  RunMonitor::Snapshot snapshot = monitor.Get();
  EXPECT_EQ(snapshot.daemons["trainer-0"].state, "running");
  EXPECT_EQ(snapshot.daemons["trainer-0"].version, "e1-s42");
  EXPECT_EQ(snapshot.daemons["rollouter-0"].version, "e1-s41");
  EXPECT_EQ(snapshot.daemons["synchronizer-0"].version, "e1-s42");
  EXPECT_EQ(snapshot.waiting, "the trainer waits for groups on rollouter-1: 3 of 16 groups are done");
  EXPECT_EQ(snapshot.checkpoints.failed, 2);
  EXPECT_EQ(snapshot.checkpoints.error, "e1-s40: no space left");
  EXPECT_EQ(snapshot.checkpoints.best, "e1-s39");
  EXPECT_EQ(snapshot.checkpoints.best_reward, 0.75);
  EXPECT_EQ(snapshot.groups["skipped"], 3);
}

TEST_F(RunMonitorTest, ADaemonThatIsGoneDoesNotHideTheOthers) {
  run_.StopRollouter(0);
  RunMonitor monitor;
  monitor.SetEndpoints(Endpoints());
  ASSERT_TRUE(run_.rollouters[1].book.WaitFor("GetStatus", 2));
  EXPECT_EQ(monitor.Get().daemons.count("rollouter-0"), 0u);
  EXPECT_EQ(monitor.Get().daemons.count("rollouter-1"), 1u);
}

TEST_F(RunMonitorTest, CountsWeightSyncsByResult) {
  RunMonitor monitor;
  monitor.SetEndpoints(Endpoints());
  run_.synchronizer.Release();
  // The monitor follows again once it has read the first stream.
  ASSERT_TRUE(run_.synchronizer.book.WaitFor("WatchSyncs", 2));
  SyncFigures syncs = monitor.Get().syncs;
  EXPECT_EQ(syncs.ok, 2);
  EXPECT_EQ(syncs.failed, 1);
  EXPECT_EQ(syncs.last_seconds, 0.0061);
  EXPECT_EQ(syncs.median_seconds, 0.0061);
  EXPECT_EQ(syncs.median_pause_seconds, 0.0001);
}

TEST_F(RunMonitorTest, SaysThatARollouterGetsNoWeights) {
  run_.synchronizer.failures_of_rollouter_1 = 3;
  RunMonitor monitor;
  monitor.SetEndpoints(Endpoints());
  run_.synchronizer.Release();
  ASSERT_TRUE(run_.synchronizer.book.WaitFor("WatchSyncs", 2));
  EXPECT_EQ(monitor.Get().alarm,
            "rollouter-1 gets no new weights: 3 weight syncs in a row have failed, the last with DUPLICATE_GPU: two "
            "members sit on one GPU");
}

TEST_F(RunMonitorTest, SaysHowTheFirstRewardFailedAndThatMostDo) {
  run_.trainer.reward_failures.set_failed(40);
  run_.trainer.reward_failures.set_recent_failed(40);
  run_.trainer.reward_failures.set_recent(64);
  run_.trainer.reward_failures.set_first("KeyError: 'x'");
  run_.trainer.reward_failures.set_last("TypeError: no");
  run_.trainer.reward_failures.set_alarm(true);
  RunMonitor monitor;
  monitor.SetEndpoints(Endpoints());
  ASSERT_TRUE(run_.rollouters[1].book.WaitFor("GetStatus", 2));
  EXPECT_EQ(monitor.Get().reward_failure, "a group got no reward: KeyError: 'x'");
  EXPECT_EQ(monitor.Get().alarm, "40 of the last 64 groups got no reward, the last: TypeError: no");
}

TEST_F(RunMonitorTest, StopEndsAStreamThatNeverEnds) {
  RunMonitor monitor;
  monitor.SetEndpoints(Endpoints());
  ASSERT_TRUE(run_.synchronizer.book.WaitFor("WatchSyncs", 1));
  monitor.Stop();
  monitor.Stop();
}

}  // namespace
}  // namespace syncopate::run
