// `syncopate bench sync --cpu`: real daemons, a tiny model, host memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/component/bench/bench_outcome.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kPatience = absl::Seconds(90);

class BenchSyncTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Process>> Start(std::vector<std::string> more) {
    std::vector<std::string> args = {"bench", "sync"};
    args.insert(args.end(), more.begin(), more.end());
    return Process::Start({SYNCOPATE_BINARY, args, temp_.path() + "/log"});
  }

  BenchOutcome Run(std::vector<std::string> more) { return AwaitBench(Start(std::move(more)), kPatience); }

  // Runs three syncs in host memory and returns the JSON.
  BenchOutcome RunOnHost(std::vector<std::string> more) {
    std::vector<std::string> args = {"--model", "tiny",     "--cpu", "--json",    "--syncs",
                                     "3",       "--warmup", "1",     "--answers", "4"};
    args.insert(args.end(), more.begin(), more.end());
    return Run(std::move(args));
  }

  static void ExpectGood(BenchOutcome outcome) {
    ASSERT_EQ(outcome.code, 0) << outcome.log;
    EXPECT_EQ(outcome.result["digests_equal"], true) << outcome.log;
    EXPECT_LT(outcome.result["worst_phase_gap"], 0.02) << outcome.log;
  }

  TempDir temp_;
};

TEST_F(BenchSyncTest, TwoTrainerRanksReachTwoReplicasWithPhasesThatAddUp) {
  BenchOutcome outcome = RunOnHost({"--sources", "2", "--replicas", "2"});
  ExpectGood(outcome);
  json& seconds = outcome.result["seconds"];
  for (const char* phase : {"prepare", "transfer", "verify", "install", "total"}) {
    EXPECT_GT(seconds[phase]["median"], 0) << phase;
  }
  EXPECT_EQ(seconds["total"]["count"], 6);  // three syncs of two replicas
  EXPECT_EQ(outcome.result["transport"], "grpc");
  EXPECT_GT(outcome.result["ceiling"]["ratio"], 0);
  EXPECT_THAT(outcome.result["memory"], SizeIs(4));
  EXPECT_THAT(outcome.result["decode"]["receivers"], SizeIs(2));
  EXPECT_GE(outcome.result["publish_to_commit_ratio"], 1);
  EXPECT_GT(outcome.result["steps"]["rate_share"], 0);
  EXPECT_GT(outcome.result["trainer_stall_seconds"]["count"], 0);
}

TEST_F(BenchSyncTest, TwoTrainerRanksReachTheRanksOfAReplicaInPlace) {
  BenchOutcome outcome =
      RunOnHost({"--sources", "2", "--tp", "2", "--install", "in_place", "--no-decode", "--no-ceiling"});
  ExpectGood(outcome);
  EXPECT_EQ(outcome.result["case"]["install"], "in_place");
}

TEST_F(BenchSyncTest, AKilledReceiverHoldsUpNobody) {
  BenchOutcome outcome = RunOnHost({"--replicas", "2", "--no-ceiling", "--kill", "receiver", "--at", "prepare"});
  ExpectGood(outcome);
  EXPECT_EQ(outcome.result["fault"]["healthy"], true);
  EXPECT_LT(outcome.result["fault"]["recovered_seconds"], 5);
}

TEST_F(BenchSyncTest, AStoppedReceiverHoldsUpNobodyForLong) {
  BenchOutcome outcome = RunOnHost({"--replicas", "2", "--no-ceiling", "--stop", "receiver", "--at", "install"});
  ExpectGood(outcome);
  EXPECT_LT(outcome.result["fault"]["recovered_seconds"], 5);
}

TEST_F(BenchSyncTest, VersionsArriveAgainWhenTheTrainerWasResumedAfterTheLossOfARank) {
  BenchOutcome outcome = RunOnHost({"--sources", "2", "--no-ceiling", "--kill", "source", "--at", "prepare"});
  ExpectGood(outcome);
  EXPECT_GT(outcome.result["fault"]["mended_seconds"], 0);
}

TEST_F(BenchSyncTest, VersionsArriveThoughTheSynchronizerWasKilled) {
  ExpectGood(RunOnHost({"--replicas", "2", "--no-ceiling", "--kill", "synchronizer", "--at", "transfer"}));
}

TEST_F(BenchSyncTest, ALateJoinerIsServedWhileTheOthersGoOn) {
  BenchOutcome outcome = RunOnHost({"--no-ceiling", "--late-joiner"});
  ExpectGood(outcome);
  EXPECT_GT(outcome.result["late_joiner"]["start_to_serving_seconds"], 0);
  EXPECT_GE(outcome.result["late_joiner"]["others_total_seconds"]["count"], 1);
}

TEST_F(BenchSyncTest, PrintsThePlanOfALargeModelWithoutAnyGpu) {
  const BenchOutcome outcome = Run({"--model", "qwen2.5-7b", "--sources", "2", "--tp", "2", "--plan"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.log, HasSubstr("2 sources"));
}

TEST_F(BenchSyncTest, RefusesACaseThatCannotBe) {
  const BenchOutcome outcome = Run({"--cpu", "--transport", "nccl"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.log, HasSubstr("--transport nccl needs GPUs"));
  EXPECT_EQ(Run({"--cpu", "--model", "no-such-model"}).code, 2);
  EXPECT_EQ(Run({"--cpu", "--kill", "receiver"}).code, 2);  // no survivor would be left to check
}

TEST_F(BenchSyncTest, SaysHowToMakeAProgramThatIsMissing) {
  const std::string alone = temp_.path() + "/syncopate";
  std::filesystem::copy_file(SYNCOPATE_BINARY, alone);
  auto process = Process::Start({alone, {"bench", "sync", "--model", "tiny", "--cpu"}, temp_.path() + "/log"});
  const BenchOutcome outcome = AwaitBench(std::move(process), kPatience);
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.log, HasSubstr("`scripts/build.sh release syncopate-synchronizer` makes it"));
}

TEST_F(BenchSyncTest, LeavesNoProcessBehindWhenItIsKilledItself) {
  const std::string mark = "rollouter.index=0";
  const std::vector<pid_t> others = ProcessesNaming(mark);  // of other runs on this machine
  auto process = Start({"--model", "tiny", "--cpu", "--syncs", "100000", "--no-ceiling"});
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT((*process)->WaitForLogLine("measuring", kPatience), IsOk());
  std::vector<pid_t> receivers = ProcessesNaming(mark);
  std::erase_if(receivers, [&](pid_t pid) { return std::find(others.begin(), others.end(), pid) != others.end(); });
  EXPECT_THAT(receivers, ::testing::Not(IsEmpty()));
  (*process)->Kill();
  ASSERT_THAT((*process)->WaitExit(kPatience), IsOk());
  const absl::Time deadline = Clock::Real()->Now() + kPatience;
  auto alive = [&] {
    return std::any_of(receivers.begin(), receivers.end(), [&](pid_t pid) {
      std::vector<pid_t> now = ProcessesNaming(mark);
      return std::find(now.begin(), now.end(), pid) != now.end();
    });
  };
  while (alive() && Clock::Real()->Now() < deadline) {
  }
  EXPECT_FALSE(alive());
}

}  // namespace
}  // namespace syncopate::testing
