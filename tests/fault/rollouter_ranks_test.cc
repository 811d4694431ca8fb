// A rollouter of two processes (tensor parallelism): training learns from its answers, and the whole rollouter ends and
// starts again when one process is gone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/daemon/daemon_endpoints.h"
#include "ranks/group_secret.h"
#include "tests/fault/fault_support.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tcp_relay.h"

namespace syncopate::testing::rollouter_ranks_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kReplicaEndsWithin = absl::Seconds(10);
constexpr int kLostPeer = 4;

std::vector<std::string> TwoRanks(std::vector<std::string> more) {
  more.push_back("rollout.tensor_parallel=2");
  return more;
}

// The process that is this rank of the run's only rollouter.
pid_t PidOfRank(const RunHarness& run, int rank) { return FindProcess(run, absl::StrCat("rollouter.rank=", rank)); }

TEST(RollouterRanksTest, WhatTwoGenerateIsLearnedFrom) {
  RunHarness run(TwoRanks({"run.steps=80", "run.seed=1", "run.rollouters=1"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(*exit, ExitStatus{}) << (*process)->Log();
  const Json summary = run.Summary();
  EXPECT_EQ(summary["status"], "completed");
  EXPECT_GE(summary["eval"]["best"], 0.95) << summary["eval"];
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  // Both ranks installed each version that the trainer published, or a later one.
  EXPECT_EQ(summary["syncs"]["failed"], 0) << summary["syncs"];
  EXPECT_THAT(run.Log("rollouter-0-rank1"), HasSubstr("rank 1 of rollouter-0 attends rank 0"));
  EXPECT_THAT(ProcessesNaming(run.run_dir()), IsEmpty());
}

TEST(RollouterRanksTest, TwoReplicasOfTwoShareTheWork) {
  RunHarness run(TwoRanks({"run.steps=10", "run.rollouters=2", "eval.every_steps=0"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.Summary()["rollouters"].size(), 2u) << run.Summary()["rollouters"];
}

TEST(RollouterRanksTest, TwoWithOneWeightSetStopTogetherForEachVersion) {
  RunHarness run(TwoRanks({"run.steps=20", "run.rollouters=1", "eval.every_steps=0", "sync.install=in_place"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  const Json summary = run.Summary();
  EXPECT_EQ(summary["syncs"]["failed"], 0) << summary["syncs"];
  EXPECT_GE(summary["syncs"]["count"], 10) << summary["syncs"];
  EXPECT_EQ(summary["staleness"]["violations"], 0);
}

// A rank, and the signal that it gets.
using Hit = std::pair<int, int>;
constexpr Hit kHits[] = {{0, SIGKILL}, {1, SIGKILL}, {1, SIGSTOP}};
std::string GetHitName(const ::testing::TestParamInfo<Hit>& info) {
  return absl::StrCat("Rank", info.param.first, info.param.second == SIGKILL ? "Killed" : "Stopped");
}

// Signals one of two ranks of rollouter 0, and waits until the other one has ended, too.
void HitRank(const RunHarness& run, int rank, int signal) {
  const int left = 1 - rank;
  const pid_t victim = PidOfRank(run, rank), other = PidOfRank(run, left);
  ASSERT_GT(victim, 0);
  ASSERT_GT(other, 0);
  ASSERT_EQ(kill(victim, signal), 0);
  EXPECT_TRUE(Eventually(kReplicaEndsWithin, [&] { return kill(other, 0) != 0 || PidOfRank(run, left) != other; }));
}

// Rank 1 is killed in a replica that receives in place.
class LostReplicaRankTest : public ::testing::TestWithParam<Hit> {};
INSTANTIATE_TEST_SUITE_P(EitherRank, LostReplicaRankTest, ::testing::ValuesIn(kHits), GetHitName);

TEST_P(LostReplicaRankTest, EndsTheWholeReplicaSoonAndItStartsAgain) {
  const auto& [rank, signal] = GetParam();
  const bool in_place = rank == 1 && signal == SIGKILL;
  RunHarness run(TwoRanks({"run.steps=1000", "run.rollouters=1", "eval.every_steps=0",
                           in_place ? "sync.install=in_place" : "sync.install=swap"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(5), IsOk());
  EXPECT_THAT(ProcessesNaming(kGroupSecretVariable), IsEmpty());  // other users could read a command line
  const pid_t victim = PidOfRank(run, rank);
  ASSERT_NO_FATAL_FAILURE(HitRank(run, rank, signal));
  EXPECT_THAT(run.Log(absl::StrCat("rollouter-0", rank == 0 ? "-rank1" : "")), HasSubstr("RANK_LOST"));
  ASSERT_THAT(run.AwaitStep(run.LastStep() + 5, 2 * kPatience), IsOk()) << (*process)->Log();
  EXPECT_NE(PidOfRank(run, rank), victim);
  kill((*process)->pid(), SIGINT);
  EXPECT_THAT((*process)->WaitExit(kPatience), IsOk());
  EXPECT_THAT(ProcessesNaming(run.run_dir()), IsEmpty());
}

// A replica that takes turns with the trainer (run.share_gpu). A rank that is stopped cannot leave its device.
class LostRankInTurnsTest : public ::testing::TestWithParam<Hit> {};
INSTANTIATE_TEST_SUITE_P(EitherRank, LostRankInTurnsTest, ::testing::ValuesIn(kHits), GetHitName);

TEST_P(LostRankInTurnsTest, EndsTheReplicaAsOneAndTheTrainerTakesItsTurnsWithTheNext) {
  constexpr int64_t kSteps = 30;
  const auto& [rank, signal] = GetParam();
  RunHarness run(TwoRanks({absl::StrCat("run.steps=", kSteps), "run.rollouters=1", "eval.every_steps=0",
                           "run.share_gpu=true", "trainer.world=2"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(5), IsOk());
  ASSERT_NO_FATAL_FAILURE(HitRank(run, rank, signal));
  auto exit = (*process)->WaitExit(3 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  const Json summary = run.Summary();
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  EXPECT_EQ(summary["groups"]["duplicate"], 0);
  EXPECT_THAT(ProcessesNaming(run.run_dir()), IsEmpty());
}

// The next replica's ranks come, and none of them takes memory before the turn is over: their rank 0 waits for the
// answer to its call for the model, and the other one for rank 0. A stopped trainer has a long turn.
TEST(RollouterRanksTest, AReplicaThatLosesARankInTheTrainersTurnComesBackAfterIt) {
  constexpr int64_t kSteps = 12;
  // Steps that take longer than a look at a daemon.
  RunHarness run(TwoRanks({absl::StrCat("run.steps=", kSteps), "run.rollouters=1", "eval.every_steps=0",
                           "run.share_gpu=true", "data.batch_groups=96"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(3), IsOk());
  auto trainer = run.Endpoint("trainer"), rollouter = run.Endpoint("rollouter");
  ASSERT_TRUE(trainer.ok() && rollouter.ok());
  const pid_t victim = PidOfRank(run, 1), other = PidOfRank(run, 0);
  const auto has_left = [&rollouter] {
    auto metrics = HttpGet(rollouter->metrics, "/metrics");
    return metrics.ok() && metrics->find("syncopate_rollouter_memory_bytes{kind=\"weights\"} 0\n") != std::string::npos;
  };
  const auto trainer_pid = static_cast<pid_t>(trainer->pid);
  const auto stops_in_its_turn = [&] {
    if (!has_left() || kill(trainer_pid, SIGSTOP) != 0) return false;
    if (has_left()) return true;
    kill(trainer_pid, SIGCONT);  // the turn was over when it was stopped
    return false;
  };
  ASSERT_TRUE(Eventually(kPatience, stops_in_its_turn, absl::Milliseconds(1)));
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  EXPECT_TRUE(Eventually(kReplicaEndsWithin, [&] { return kill(other, 0) != 0 || PidOfRank(run, 0) != other; }));
  const auto starts = [&run](const std::string& line) {
    const std::string log = run.Log("rollouter-0");
    int64_t count = 0;
    for (size_t at = log.find(line); at != std::string::npos; at = log.find(line, at + 1)) ++count;
    return count;
  };
  // Rank 0 joins once for the model, when all ranks have come, and once more when it has its engine.
  EXPECT_TRUE(Eventually(kPatience, [&] { return starts("joined the synchronizer") == 3; }));
  EXPECT_EQ(starts("all 2 ranks of this replica are there"), 1);
  ASSERT_EQ(kill(trainer_pid, SIGCONT), 0);
  auto exit = (*process)->WaitExit(3 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(starts("all 2 ranks of this replica are there"), 2);
  const Json summary = run.Summary();
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  EXPECT_EQ(summary["groups"]["duplicate"], 0);
}

// A replica of two ranks whose weights take several messages to each rank and pass through a relay.
class InPlaceReplicaTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMiddle = 2 << 20;  // of the 7 MB that a rank gets

  static std::vector<std::string> ByRelay(int trainer, int relay) {
    return TwoRanks({"run.steps=10000", "run.rollouters=1", "eval.every_steps=0", "sync.install=in_place",
                     "data.batch_groups=2", "sync.every_steps=4", "rollout.samples=2", "model.hidden_size=256",
                     "model.intermediate_size=1024", "model.num_hidden_layers=4",
                     absl::StrCat("trainer.listen=127.0.0.1:", trainer),
                     absl::StrCat("trainer.advertise=127.0.0.1:", relay)});
  }
  bool LogHas(const std::string& daemon, const std::string& text) const {
    return run_.Log(daemon).find(text) != std::string::npos;
  }

  const int trainer_ = FreePort().value();
  TcpRelay relay_{trainer_};
  RunHarness run_{ByRelay(trainer_, relay_.port())};
};

TEST_F(InPlaceReplicaTest, ATransferThatBreaksOnOneRankLeavesNoVersionUntilTheNext) {
  auto process = run_.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run_.AwaitStep(3), IsOk()) << (*process)->Log();
  relay_.CutOne(kMiddle);
  ASSERT_TRUE(Eventually(kPatience, [&] { return relay_.cut() == 1; }));
  // Rank 0 reports the loss, whichever rank lost its transfer.
  EXPECT_TRUE(Eventually(kPatience, [&] { return LogHas("rollouter-0", "a transfer in place has failed"); }));
  // A replica that handed its leases back would be quarantined for a minute, and the steps would not come in time.
  ASSERT_THAT(run_.AwaitStep(run_.LastStep() + 5, kPatience / 2), IsOk()) << (*process)->Log();
  kill((*process)->pid(), SIGINT);
  EXPECT_THAT((*process)->WaitExit(kPatience), IsOk());
  const Json summary = run_.Summary();
  EXPECT_GE(summary["syncs"]["failed"], 1) << summary["syncs"];
  EXPECT_EQ(summary["staleness"]["violations"], 0);
}

TEST_F(InPlaceReplicaTest, ARankThatIsKilledInTheMiddleOfATransferEndsTheReplicaAndItStartsAgain) {
  auto process = run_.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run_.AwaitStep(3), IsOk()) << (*process)->Log();
  const pid_t victim = PidOfRank(run_, 1), other = PidOfRank(run_, 0);
  ASSERT_GT(victim, 0);
  ASSERT_GT(other, 0);
  relay_.HoldAll(kMiddle);
  ASSERT_TRUE(Eventually(kPatience, [&] { return relay_.held() == 2; })) << "both ranks receive";
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  EXPECT_TRUE(Eventually(kReplicaEndsWithin, [&] { return kill(other, 0) != 0 || PidOfRank(run_, 0) != other; }));
  EXPECT_TRUE(LogHas("rollouter-0", "RANK_LOST"));
  relay_.Release();
  ASSERT_THAT(run_.AwaitStep(run_.LastStep() + 5, 2 * kPatience), IsOk()) << (*process)->Log();
  kill((*process)->pid(), SIGINT);
  EXPECT_THAT((*process)->WaitExit(kPatience), IsOk());
  EXPECT_THAT(ProcessesNaming(run_.run_dir()), IsEmpty());
}

TEST(RollouterRanksTest, ASizeThatDoesNotDivideTheHeadsEndsBeforeAnythingStarts) {
  RunHarness run({"run.steps=5", "rollout.tensor_parallel=8"});  // the model has 4 heads
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_NE(exit->code, 0);
  EXPECT_THAT((*process)->Log(), HasSubstr("rollout.tensor_parallel is 8"));
  EXPECT_THAT((*process)->Log(), HasSubstr("it may be 1, 2, 4"));
}

// The secret that `syncopate run` and `syncopate replica` give to the ranks that they start.
class SecretOfRanks {
 public:
  SecretOfRanks() { setenv(kGroupSecretVariable, std::string(2 * kGroupSecretBytes, 'a').c_str(), 1); }
  ~SecretOfRanks() { unsetenv(kGroupSecretVariable); }
};

TEST(RollouterRanksTest, ARankByHandWithoutASecretEndsAtOnceAndSaysWhatItNeeds) {
  RunHarness run(TwoRanks({"run.steps=6"}));
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  const std::vector<std::vector<std::string>> ranks = {{"rollouter.rank=0"},
                                                       {"rollouter.rank=1", "rollouter.rank0=127.0.0.1:1"}};
  for (size_t i = 0; i < ranks.size(); ++i) {
    auto rank = run.LaunchDaemon("rollouter", static_cast<int64_t>(i), ranks[i]);
    ASSERT_THAT(rank, IsOk());
    auto exit = (*rank)->WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 2) << (*rank)->Log();
    EXPECT_THAT((*rank)->Log(), HasSubstr("set up mutual TLS or a bearer token"));
  }
}

TEST(RollouterRanksTest, RanksByHandThatDisagreeBothEndWithTheReason) {
  const SecretOfRanks secret;
  RunHarness run(TwoRanks({"run.steps=6", "eval.every_steps=0"}));
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto first = run.LaunchDaemon("rollouter", 0, {"rollouter.rank=0"});
  ASSERT_THAT(first, IsOk());
  const std::string announced = daemon::EndpointPath(run.Path(daemon::kReplicasFolder), "rollouter", 0);
  ASSERT_TRUE(Eventually(kPatience, [&] { return daemon::ReadDaemonEndpoint(announced).ok(); }));
  const std::string rank0 = daemon::ReadDaemonEndpoint(announced)->grpc;
  auto second = run.LaunchDaemon(
      "rollouter", 0, {"rollouter.rank=1", absl::StrCat("rollouter.rank0=", rank0), "rollout.max_sequences=64"});
  ASSERT_THAT(second, IsOk());
  for (Process* rank : {first->get(), second->get()}) {
    auto exit = rank->WaitExit(kReplicaEndsWithin);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, kLostPeer) << rank->Log();
    EXPECT_THAT(rank->Log(), HasSubstr("rollouter rank 1 has another configuration than rank 0"));
  }
}

}  // namespace
}  // namespace syncopate::testing::rollouter_ranks_test
