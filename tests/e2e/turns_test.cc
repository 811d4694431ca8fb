// Trainer and rollouters that take turns on the device that they share (run.share_gpu), here the CPU of one machine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/eventually.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::turns_test {
namespace {

using ::testing::HasSubstr;

// A figure of one daemon; -1 if it cannot be read.
int64_t ReadFigure(const daemon::DaemonEndpoint& daemon, const std::string& figure) {
  auto text = HttpGet(daemon.metrics, "/metrics");
  const std::string name = figure + " ";
  const size_t begin = text.ok() ? text->find(name) : std::string::npos;
  return begin == std::string::npos ? -1 : std::stoll(text->substr(begin + name.size()));
}

// Sequences that rollouter 0 took off the device for turns; -1 if that cannot be read.
int64_t ReadYielded(const RunHarness& run, const std::string& kind) {
  auto endpoint = run.Endpoint("rollouter");
  if (!endpoint.ok()) return -1;
  return ReadFigure(*endpoint, absl::StrCat("syncopate_yielded_sequences_total{kind=\"", kind, "\"}"));
}

// Waits until the daemon, a rollouter, has left its device, or has it.
bool AwaitOnDevice(const daemon::DaemonEndpoint& rollouter, bool on_device) {
  return Eventually(
      kPatience,
      [&] {
        const int64_t bytes = ReadFigure(rollouter, "syncopate_rollouter_memory_bytes{kind=\"weights\"}");
        return bytes >= 0 && (bytes > 0) == on_device;
      },
      absl::Milliseconds(1));
}

// Steps that take about as long as a look at a daemon, so that a test sees the trainer's turn.
std::vector<std::string> LongTurns(int64_t steps, std::vector<std::string> more = {}) {
  std::vector<std::string> words = {"run.share_gpu=true", "data.batch_groups=96", "eval.every_steps=0",
                                    absl::StrCat("run.steps=", steps)};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void ExpectNothingLost(const RunHarness& run, Process& process, int64_t steps) {
  auto exit = process.WaitExit(3 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << process.Log();
  const Json summary = run.Summary();
  EXPECT_EQ(summary["steps"], steps);
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  EXPECT_EQ(summary["groups"]["duplicate"], 0);
}

// A run in turns has the bits of one whose processes do not share the device. Each step of the first moves state, and no
// step of the second.
void ExpectSameBitsApart(int64_t steps, const std::vector<std::string>& words) {
  const auto get_digests = [&](const std::string& shares) {
    std::vector<std::string> all = {absl::StrCat("run.share_gpu=", shares), "staleness.max_staleness=0", "run.seed=3",
                                    absl::StrCat("run.steps=", steps)};
    all.insert(all.end(), words.begin(), words.end());
    RunHarness run(all);
    auto process = run.Run();
    EXPECT_THAT(process, IsOk());
    auto exit = (*process)->WaitExit(3 * kPatience);
    EXPECT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 0) << (*process)->Log();
    for (const Json& step : run.Records("step")) {
      EXPECT_EQ(step["turn_moved_bytes"] > 0, shares == "true") << step;
    }
    return run.Digests();
  };
  const auto in_turns = get_digests("true");
  EXPECT_EQ(in_turns.size(), static_cast<size_t>(steps));
  EXPECT_EQ(in_turns, get_digests("false"));
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

// The ranks share one policy, so that all of them have their turn at the same time. Each writes its part of a
// checkpoint from its host memory.
TEST(TurnsTest, SeveralTrainerRanksTakeTurnsTogetherAndHaveTheBitsOfARunApart) {
  constexpr int64_t kFewSteps = 12;
  ExpectSameBitsApart(kFewSteps, {"trainer.world=2", "checkpoint.every_steps=4"});
}

// A replica leaves its devices as one, keeps its answers, receives the shards of both trainer ranks at both of its
// own, and goes on.
TEST(TurnsTest, AReplicaOfSeveralRanksTakesTurnsAndHasTheBitsOfTheTwin) {
  constexpr int64_t kFewSteps = 12;
  for (const int world : {1, 2}) {
    RunHarness run({"run.share_gpu=true", absl::StrCat("trainer.world=", world), "rollout.tensor_parallel=2",
                    "run.rollouters=2", "staleness.max_staleness=0", "run.seed=3", "checkpoint.every_steps=4",
                    absl::StrCat("run.steps=", kFewSteps)});
    auto process = run.Run();
    ASSERT_THAT(process, IsOk());
    auto twin = TwinDigests(run.config(), run.overrides(), kFewSteps);
    ASSERT_THAT(twin, IsOk());
    auto exit = (*process)->WaitExit(3 * kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 0) << (*process)->Log();
    EXPECT_EQ(run.Digests(), *twin) << world;
    const std::vector<Json> steps = run.Records("step");
    EXPECT_EQ(steps.size(), static_cast<size_t>(kFewSteps));
    for (const Json& step : steps) EXPECT_GT(step["turn_moved_bytes"], 0) << step;
    EXPECT_EQ(run.Summary()["syncs"]["failed"], 0) << run.Summary()["syncs"];
    EXPECT_THAT(run.Log("trainer-0"), ::testing::Not(HasSubstr("it is evicted")));
  }
}

// Each rank drops its slice of the base, and is sent it after each turn.
TEST(TurnsTest, AdaptersOnAReplicaOfSeveralRanksHaveTheBitsOfARunApart) {
  constexpr int64_t kFewSteps = 8;
  ExpectSameBitsApart(kFewSteps, {"lora.rank=4", "trainer.world=2", "rollout.tensor_parallel=2", "run.rollouters=1"});
}

// Answers are under way at every turn, of which each rank swaps its own heads' part.
TEST(TurnsTest, AReplicaOfSeveralRanksLearnsInTurnsAsARunApart) {
  constexpr int64_t kSteps = 80;
  RunHarness run({"run.share_gpu=true", "trainer.world=2", "rollout.tensor_parallel=2", "run.rollouters=1",
                  "rollout.host_kv_memory=0.0001", "run.seed=1", absl::StrCat("run.steps=", kSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  EXPECT_TRUE(Eventually(2 * kPatience, [&] {
    return ReadYielded(run, "swap") > 0 && ReadYielded(run, "recompute") > 0;
  })) << run.Log("rollouter-0");
  auto exit = (*process)->WaitExit(3 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(*exit, ExitStatus{}) << (*process)->Log();
  const Json summary = run.Summary();
  EXPECT_GE(summary["eval"]["best"], 0.95) << summary["eval"];
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  EXPECT_EQ(summary["syncs"]["failed"], 0) << summary["syncs"];
  for (const auto& [reason, count] : summary["groups"]["dropped"].items()) EXPECT_EQ(count, 0) << reason;
  EXPECT_THAT(run.Log("trainer-0"), ::testing::Not(HasSubstr("it is evicted")));
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

TEST(TurnsTest, ARollouterThatDiesInTheTrainersTurnComesBackAfterIt) {
  constexpr int64_t kSteps = 12;
  RunHarness run(LongTurns(kSteps));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(3), IsOk());
  auto trainer = run.Endpoint("trainer"), killed = run.Endpoint("rollouter", 1), other = run.Endpoint("rollouter", 0);
  ASSERT_TRUE(trainer.ok() && killed.ok() && other.ok());
  ASSERT_TRUE(AwaitOnDevice(*other, false));
  ASSERT_EQ(kill(trainer->pid, SIGSTOP), 0);  // its turn lasts until it goes on
  ASSERT_TRUE(AwaitOnDevice(*killed, false)) << "it was told before the trainer was stopped";
  ASSERT_EQ(kill(killed->pid, SIGKILL), 0);
  ASSERT_EQ(kill(trainer->pid, SIGCONT), 0);
  ASSERT_THAT(run.Endpoint("rollouter", 1, killed->pid), IsOk());
  ExpectNothingLost(run, **process, kSteps);
}

// It has been told to leave the device, and does not.
TEST(TurnsTest, ARollouterThatDiesWhenItIsToldToYieldHoldsTheTurnUpUntilItIsDead) {
  constexpr int64_t kSteps = 12;
  RunHarness run(LongTurns(kSteps));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(3), IsOk());
  auto killed = run.Endpoint("rollouter", 1), other = run.Endpoint("rollouter", 0);
  ASSERT_TRUE(killed.ok() && other.ok());
  ASSERT_TRUE(AwaitOnDevice(*killed, true));
  ASSERT_EQ(kill(killed->pid, SIGSTOP), 0);
  ASSERT_TRUE(AwaitOnDevice(*other, false)) << "the trainer waits for the one that is stopped";
  const int64_t step = run.LastStep();
  ASSERT_EQ(kill(killed->pid, SIGKILL), 0);
  ASSERT_THAT(run.Endpoint("rollouter", 1, killed->pid), IsOk());
  EXPECT_LE(step, kSteps);
  ExpectNothingLost(run, **process, kSteps);
}

// The synchronizer is stopped meanwhile, so that nobody receives anything.
TEST(TurnsTest, ARollouterThatDiesWhileItReceivesDelaysNobodysReturn) {
  constexpr int64_t kSteps = 12;
  RunHarness run(LongTurns(kSteps));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(3), IsOk());
  auto synchronizer = run.Endpoint("synchronizer"), killed = run.Endpoint("rollouter", 1);
  ASSERT_TRUE(synchronizer.ok() && killed.ok());
  ASSERT_TRUE(AwaitOnDevice(*killed, false));
  ASSERT_EQ(kill(synchronizer->pid, SIGSTOP), 0);
  ASSERT_TRUE(AwaitOnDevice(*killed, true)) << "it has taken memory, and waits for weights";
  ASSERT_EQ(kill(killed->pid, SIGKILL), 0);
  ASSERT_EQ(kill(synchronizer->pid, SIGCONT), 0);
  ASSERT_THAT(run.Endpoint("rollouter", 1, killed->pid), IsOk());
  ExpectNothingLost(run, **process, kSteps);
}

TEST(TurnsTest, ATrainerThatDiesInItsTurnFreesTheDeviceAndChangesNoBit) {
  constexpr int64_t kSteps = 12;
  RunHarness run(LongTurns(kSteps, {"staleness.max_staleness=0"}));
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
  ASSERT_THAT(run.AwaitStep(4), IsOk());
  auto rollouter = run.Endpoint("rollouter", 0);
  ASSERT_THAT(rollouter, IsOk());
  ASSERT_TRUE(AwaitOnDevice(*rollouter, false));
  (*trainer)->Kill();
  ASSERT_THAT((*trainer)->WaitExit(kPatience), IsOk());
  trainer = run.StartDaemon("trainer", 0, {"run.resume=true"});
  ASSERT_THAT(trainer, IsOk());
  auto exit = (*trainer)->WaitExit(3 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*trainer)->Log();
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
}

// Resident bytes and open descriptors of a process.
struct Footprint {
  int64_t bytes = 0;
  ptrdiff_t descriptors = 0;
};
Footprint ReadFootprint(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid);
  int64_t total = 0, resident = 0;
  std::ifstream(folder + "/statm") >> total >> resident;
  return {resident * sysconf(_SC_PAGESIZE),
          std::distance(std::filesystem::directory_iterator(folder + "/fd"), std::filesystem::directory_iterator())};
}

// The least of what is read while some steps are made: a trainer's state is in its memory at one moment of a turn,
// and not at another.
Footprint ReadLeastFootprint(const RunHarness& run, pid_t pid) {
  constexpr int64_t kSteps = 5;
  Footprint least = ReadFootprint(pid);
  const int64_t last = run.LastStep() + kSteps;
  EXPECT_TRUE(Eventually(kPatience, [&] {
    const Footprint now = ReadFootprint(pid);
    least = {std::min(least.bytes, now.bytes), std::min(least.descriptors, now.descriptors)};
    return run.LastStep() >= last;
  }));
  return least;
}

TEST(TurnsTest, FiftyTurnsTakeNeitherMemoryNorDescriptors) {
  constexpr int64_t kWarm = 20, kTurns = 50;
  RunHarness run({"run.share_gpu=true", "rollout.host_kv_memory=0.001", "eval.every_steps=0", "run.steps=100000"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(kWarm), IsOk());
  std::map<std::string, std::pair<pid_t, Footprint>> before;
  for (const char* role : {"trainer", "rollouter", "synchronizer"}) {
    auto endpoint = run.Endpoint(role);
    ASSERT_THAT(endpoint, IsOk());
    const auto pid = static_cast<pid_t>(endpoint->pid);
    before[role] = {pid, ReadLeastFootprint(run, pid)};
  }
  ASSERT_THAT(run.AwaitStep(kWarm + kTurns), IsOk());
  for (const auto& [role, one] : before) {
    const Footprint now = ReadLeastFootprint(run, one.first);
    EXPECT_LE(now.bytes, one.second.bytes + (8 << 20)) << role << " had " << one.second.bytes;
    // A call may be under way at one of the two moments.
    EXPECT_LE(now.descriptors, one.second.descriptors + 4) << role;
  }
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
