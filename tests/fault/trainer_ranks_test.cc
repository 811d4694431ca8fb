// A trainer of two processes: it learns, repeats its bits, and ends as a whole when one process is gone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "ranks/group_secret.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/channel.h"
#include "syncopate/v1/rank.grpc.pb.h"
#include "tests/fault/fault_support.h"
#include "tests/support/eventually.h"
#include "tests/support/notification.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"
#include "trainer/checkpoint/checkpoint_store.h"

namespace syncopate::testing::trainer_ranks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kGroupEndsWithin = absl::Seconds(10);
constexpr int kLostPeer = 4;

std::vector<std::string> TwoRanks(std::vector<std::string> more) {
  more.push_back("trainer.world=2");
  return more;
}

// The process that is this rank of the trainer.
pid_t PidOfRank(const RunHarness& run, int rank) { return FindProcess(run, absl::StrCat("trainer.rank=", rank)); }

TEST(TrainerRanksTest, TwoLearnToReverseFourSymbols) {
  RunHarness run(TwoRanks({"run.steps=80", "run.seed=1"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(*exit, ExitStatus{}) << (*process)->Log();
  const Json summary = run.Summary();
  EXPECT_EQ(summary["status"], "completed");
  EXPECT_GE(summary["eval"]["best"], 0.95) << summary["eval"];
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  EXPECT_EQ(run.Digests().size(), 80u);
  EXPECT_THAT(run.Log("trainer-1"), HasSubstr("trainer rank 1 of run"));
  EXPECT_THAT(ProcessesNaming(run.run_dir()), IsEmpty());
}

// The bits repeat, too, when one of the runs has its weights in host memory between the steps, on both ranks.
TEST(TrainerRanksTest, TwoGiveTheSameBitsEachTime) {
  auto digests = [](bool offload) {
    RunHarness run(TwoRanks({"run.steps=12", "staleness.max_staleness=0", "run.seed=3",
                             absl::StrCat("train.offload_params=", offload ? "true" : "false")}));
    auto process = run.Run();
    EXPECT_THAT(process, IsOk());
    auto exit = (*process)->WaitExit(2 * kPatience);
    EXPECT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 0) << (*process)->Log();
    for (const Json& line : run.Records("step")) {
      EXPECT_EQ(line["parameters_load_seconds"].get<double>() > 0.0, offload);
      EXPECT_EQ(line["parameters_offload_seconds"].get<double>() > 0.0, offload);
      EXPECT_EQ(line["parameters_device_bytes"].get<int64_t>() == 0, offload);
    }
    return run.Digests();
  };
  const auto first = digests(false);
  EXPECT_EQ(first.size(), 12u);
  EXPECT_EQ(digests(true), first);
}

TEST(TrainerRanksTest, TwoAreTaughtBeforeTheyAreRewardedAndShareAReferenceAndAHeldOutLoss) {
  RunHarness run(TwoRanks({"run.steps=6", "train.sft_steps=4", "eval.every_steps=2", "train.kl_coef=0.1"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.LastStep(), 6);
  for (const Json& step : run.Records("step")) {
    const int64_t number = step["step"];
    EXPECT_EQ(step.contains("held_out_loss"), number == 2 || number == 4) << number;
    const double divergence = number == 5 ? step["reference_kl"].get<double>() : 0;
    EXPECT_NEAR(divergence, 0, 1e-9) << "the reference is where the supervised steps ended";
  }
  for (const char* name : {"reference-0-of-2.safetensors", "reference-1-of-2.safetensors"}) {
    EXPECT_TRUE(std::filesystem::exists(run.Path(absl::StrCat("checkpoints/e1-s6/", name)))) << name;
  }
}

// The parameter is (rank, signal).
class LostRankTest : public ::testing::TestWithParam<std::pair<int, int>> {};
INSTANTIATE_TEST_SUITE_P(EitherRank, LostRankTest,
                         ::testing::Values(std::pair(0, SIGKILL), std::pair(1, SIGKILL), std::pair(0, SIGSTOP),
                                           std::pair(1, SIGSTOP)),
                         [](const auto& info) {
                           return absl::StrCat("Rank", info.param.first,
                                               info.param.second == SIGKILL ? "Killed" : "Stopped");
                         });

TEST_P(LostRankTest, EndsTheWholeRunSoonAndItIsResumed) {
  const auto& [rank, signal] = GetParam();
  RunHarness run(TwoRanks({"run.steps=1000", "checkpoint.every_steps=5", "eval.every_steps=0"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(8), IsOk());
  const pid_t victim = PidOfRank(run, rank);
  ASSERT_GT(victim, 0);
  const absl::Time hit = Clock::Real()->Now();
  ASSERT_EQ(kill(victim, signal), 0);
  auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, kLostPeer) << (*process)->Log();
  EXPECT_LT(Clock::Real()->Now() - hit, kGroupEndsWithin) << (*process)->Log();
  EXPECT_THAT(ProcessesNaming(run.run_dir()), IsEmpty());
  EXPECT_THAT((*process)->Log(), AllOf(HasSubstr(absl::StrCat("trainer-", rank)), HasSubstr("run --resume")));
  EXPECT_THAT(run.Log(absl::StrCat("trainer-", 1 - rank)), HasSubstr("RANK_LOST"));
  // Rank 0 removes the save in progress, if it still can.
  for (const auto& entry : std::filesystem::directory_iterator(run.Path("checkpoints"))) {
    EXPECT_TRUE(rank == 0 || !absl::StartsWith(entry.path().filename().string(), ".tmp")) << entry.path();
  }

  const int64_t before = run.LastStep();
  auto resumed = run.Resume({absl::StrCat("run.steps=", before + 5)});
  ASSERT_THAT(resumed, IsOk());
  auto end = (*resumed)->WaitExit(2 * kPatience);
  ASSERT_THAT(end, IsOk());
  EXPECT_EQ(end->code, 0) << (*resumed)->Log();
  EXPECT_EQ(run.LastStep(), before + 5);
}

// The rollouters wait for a trainer that never ends its turn, until they are told of a next one.
TEST(TrainerRanksTest, ARankThatDiesInItsTurnFreesTheDevicesAndChangesNoBit) {
  constexpr int64_t kSteps = 12;
  // Turns that are long enough to be seen.
  RunHarness run(TwoRanks({"run.share_gpu=true", "data.batch_groups=96", "staleness.max_staleness=0",
                           "eval.every_steps=0", "checkpoint.every_steps=2", absl::StrCat("run.steps=", kSteps)}));
  auto process = run.Run();
  for (int rank : {1, 0}) {
    ASSERT_THAT(process, IsOk());
    ASSERT_THAT(run.AwaitStep(run.LastStep() + 3), IsOk()) << (*process)->Log();
    auto rollouter = run.Endpoint("rollouter", 0);
    ASSERT_THAT(rollouter, IsOk());
    ASSERT_TRUE(Eventually(
        kPatience,
        [&] {
          auto text = HttpGet(rollouter->metrics, "/metrics");
          return text.ok() && absl::StrContains(*text, "syncopate_rollouter_memory_bytes{kind=\"weights\"} 0\n");
        },
        absl::Milliseconds(1)));
    const pid_t victim = PidOfRank(run, rank);
    ASSERT_GT(victim, 0);
    ASSERT_EQ(kill(victim, SIGKILL), 0);
    auto exit = (*process)->WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, kLostPeer) << (*process)->Log();
    EXPECT_THAT(run.Log(absl::StrCat("trainer-", 1 - rank)), HasSubstr("RANK_LOST"));
    EXPECT_THAT(ProcessesNaming(run.run_dir()), IsEmpty());
    process = run.Resume();
  }
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(3 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
}

// The files that exist during a save, in the order in which they appear.
enum class SaveStage { kFolder, kFileOfRank0, kFileOfRank1, kAllFiles, kManifest, kRenamed };
constexpr SaveStage kSaveStages[] = {SaveStage::kFolder,   SaveStage::kFileOfRank0, SaveStage::kFileOfRank1,
                                     SaveStage::kAllFiles, SaveStage::kManifest,    SaveStage::kRenamed};

namespace fs = std::filesystem;

// A file that exists has at least been begun.
bool HasReached(const fs::path& checkpoints, SaveStage stage, const std::set<std::string>& before) {
  std::error_code gone;  // the folder may be renamed meanwhile
  for (const auto& entry : fs::directory_iterator(checkpoints, gone)) {
    const std::string name = entry.path().filename().string();
    const bool is_written = absl::StartsWith(name, ".tmp-e");
    auto has = [&entry, &gone](const char* file) { return fs::exists(entry.path() / file, gone); };
    switch (stage) {
      case SaveStage::kFolder:
        if (is_written) return true;
        break;
      case SaveStage::kFileOfRank0:
        if (is_written && has("model-0-of-2.safetensors")) return true;
        break;
      case SaveStage::kFileOfRank1:
        if (is_written && has("model-1-of-2.safetensors")) return true;
        break;
      case SaveStage::kAllFiles:
        if (is_written && has("optimizer-0-of-2.safetensors") && has("optimizer-1-of-2.safetensors")) return true;
        break;
      case SaveStage::kManifest:
        if (is_written && has("manifest.json")) return true;
        break;
      case SaveStage::kRenamed:
        if (trainer::ParseCheckpointName(name).has_value() && before.count(name) == 0) return true;
        break;
    }
  }
  return false;
}

std::set<std::string> NamesIn(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

// The state of a process in the kernel's notation: 'T' is stopped.
char GetState(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= line.size() ? '?' : line[name_end + 2];
}

void SignalBoth(const std::array<pid_t, 2>& ranks, int signal) {
  for (pid_t rank : ranks) kill(rank, signal);
}

// Stops both ranks when a save has reached this stage and is not over, unless the end is the stage. Once both ranks are
// stopped, the stage is checked again: if the save went on meanwhile, the ranks are continued, and the function waits
// for the next save. False if no save was stopped at the stage in time.
bool StopAt(const fs::path& checkpoints, SaveStage stage, const std::set<std::string>& before,
            const std::array<pid_t, 2>& ranks) {
  const absl::Time until = Clock::Real()->Now() + kPatience;
  while (Clock::Real()->Now() < until) {
    if (!HasReached(checkpoints, stage, before)) continue;
    SignalBoth(ranks, SIGSTOP);
    while ((GetState(ranks[0]) != 'T' || GetState(ranks[1]) != 'T') && Clock::Real()->Now() < until) {
    }
    if (HasReached(checkpoints, stage, before)) return true;
    SignalBoth(ranks, SIGCONT);
  }
  return false;
}

// The step of the newest checkpoint, which is the highest that has a name; -1 if one that has a name does not verify.
int64_t NewestStep(const std::string& checkpoints) {
  auto store = trainer::CheckpointStore::Open(FileSystem::Real(), checkpoints);
  EXPECT_THAT(store, IsOk());
  const auto latest = (*store)->LoadLatest();
  EXPECT_THAT(latest, IsOk());
  if (!latest.ok() || !latest->skipped.empty()) return -1;
  EXPECT_EQ(latest->checkpoint.ranks, 2);
  return latest->checkpoint.version.step;
}

// The parameter is (stage, rank).
class KilledSaveTest : public ::testing::TestWithParam<SaveStage> {};
INSTANTIATE_TEST_SUITE_P(AnyStage, KilledSaveTest, ::testing::ValuesIn(kSaveStages),
                         [](const auto& info) { return absl::StrCat("Stage", static_cast<int>(info.param)); });

TEST_P(KilledSaveTest, LeavesACheckpointThatVerifiesAndIsGoneOnFrom) {
  RunHarness run(TwoRanks({"run.steps=100000", "checkpoint.every_steps=1", "eval.every_steps=0"}));
  auto process = run.Run();
  for (int rank : {1, 0}) {
    ASSERT_THAT(process, IsOk());
    const int64_t begun = run.LastStep();
    ASSERT_THAT(run.AwaitStep(begun + 3), IsOk()) << (*process)->Log();
    const std::array<pid_t, 2> ranks = {PidOfRank(run, 0), PidOfRank(run, 1)};
    ASSERT_GT(std::min(ranks[0], ranks[1]), 0);
    const std::string checkpoints = run.Path("checkpoints");
    const bool reached = StopAt(checkpoints, GetParam(), NamesIn(checkpoints), ranks);
    ASSERT_EQ(kill(ranks[static_cast<size_t>(rank)], SIGKILL), 0);
    SignalBoth(ranks, SIGCONT);
    ASSERT_TRUE(reached) << "no save was found at this stage";
    auto exit = (*process)->WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, kLostPeer) << (*process)->Log();
    EXPECT_GE(NewestStep(checkpoints), begun + 1);
    if (rank == 1) process = run.Resume();
  }
}

TEST(TrainerRanksTest, ACheckpointOfTwoIsGoneOnWithByOneAndBackAgain) {
  RunHarness run({"run.steps=6", "eval.every_steps=0"});
  auto step_on = [&run](int ranks, int64_t steps, bool resume) {
    const std::vector<std::string> more = {absl::StrCat("trainer.world=", ranks), absl::StrCat("run.steps=", steps)};
    auto process = resume ? run.Resume(more) : run.Run(more);
    ASSERT_THAT(process, IsOk());
    auto exit = (*process)->WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 0) << (*process)->Log();
    EXPECT_EQ(run.LastStep(), steps);
  };
  ASSERT_NO_FATAL_FAILURE(step_on(2, 6, false));
  ASSERT_NO_FATAL_FAILURE(step_on(1, 9, true));
  ASSERT_NO_FATAL_FAILURE(step_on(3, 12, true));
}

TEST(TrainerRanksTest, RanksByHandThatDisagreeAllEndWithTheReason) {
  RunHarness run(TwoRanks({"run.steps=6", "eval.every_steps=0", "trainer.listen=127.0.0.1:0"}));
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto first = run.LaunchDaemon("trainer", 0, {"trainer.rank=0"});
  ASSERT_THAT(first, IsOk());
  const std::string announced = daemon::EndpointPath(run.Path(daemon::kRanksFolder), "trainer", 0);
  ASSERT_TRUE(Eventually(kPatience, [&] { return daemon::ReadDaemonEndpoint(announced).ok(); }));
  const std::string rank0 = daemon::ReadDaemonEndpoint(announced)->grpc;
  auto second = run.LaunchDaemon("trainer", 1,
                                 {"trainer.rank=1", absl::StrCat("trainer.rank0=", rank0), "train.learning_rate=0.5"});
  ASSERT_THAT(second, IsOk());
  for (Process* rank : {first->get(), second->get()}) {
    auto exit = rank->WaitExit(kGroupEndsWithin);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, kLostPeer) << rank->Log();
    EXPECT_THAT(rank->Log(), HasSubstr("trainer rank 1 has another configuration than rank 0"));
  }
}

// Attempts to join as an unknown process that can reach the port.
absl::Status SayHello(const std::string& address, int32_t rank, const std::string& secret) {
  using Stream = rpc::ClientBidiStream<v1::AttendRequest, v1::AttendResponse>;
  auto stub = v1::RankService::NewStub(rpc::MakeChannel(address).value());
  auto ended = std::make_shared<Mailbox<absl::Status>>();
  auto stream = Stream::Create();
  v1::AttendRequest hello;
  hello.mutable_hello()->set_rank(rank);
  hello.mutable_hello()->set_world(1 << 20);
  hello.mutable_hello()->set_secret(secret);
  stream->Write(hello);
  stream->Start([&stub](auto* context, auto* reactor) { stub->async()->Attend(context, reactor); },
                {.on_message = [](const v1::AttendResponse&) {},
                 .on_done = [ended](const absl::Status& status) { ended->Put(status); }});
  return ended->WaitFor(1, kPatience) ? ended->All().front() : absl::DeadlineExceededError("no end");
}

TEST(TrainerRanksTest, StrangersAtThePortOfRank0LoseNothing) {
  RunHarness run(TwoRanks({"run.steps=100000", "eval.every_steps=0"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(2), IsOk());
  auto trainer = run.Endpoint("trainer");
  ASSERT_THAT(trainer, IsOk());
  const std::string path = daemon::RanksSecretPath(run.run_dir());
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  const auto secret = daemon::ReadRanksSecret(run.run_dir());
  ASSERT_THAT(secret, IsOk());
  EXPECT_EQ(secret->size(), kGroupSecretBytes);
  for (int32_t rank : {-1, 0, 1, 2, 7}) {
    EXPECT_THAT(SayHello(trainer->grpc, rank, ""), HasReason("WRONG_SECRET"));
    EXPECT_THAT(SayHello(trainer->grpc, rank, std::string(kGroupSecretBytes, 'x')), HasReason("WRONG_SECRET"));
    EXPECT_THAT(SayHello(trainer->grpc, rank, *secret), HasReason(rank == 1 ? "RANK_TAKEN" : "BAD_RANK"));
  }
  EXPECT_THAT(run.AwaitStep(run.LastStep() + 5), IsOk()) << (*process)->Log();
  for (const char* log : {"trainer-0", "trainer-1"}) EXPECT_THAT(run.Log(log), Not(HasSubstr(*secret)));
  kill((*process)->pid(), SIGINT);
  EXPECT_THAT((*process)->WaitExit(kPatience), IsOk());
}

TEST(TrainerRanksTest, ARankByHandInAnotherFolderIsToldWhatItNeedsAndHarmsNobody) {
  RunHarness run(TwoRanks({"run.steps=6", "eval.every_steps=0", "trainer.listen=127.0.0.1:0"}));
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto first = run.LaunchDaemon("trainer", 0, {"trainer.rank=0"});
  ASSERT_THAT(first, IsOk());
  const std::string announced = daemon::EndpointPath(run.Path(daemon::kRanksFolder), "trainer", 0);
  ASSERT_TRUE(Eventually(kPatience, [&] { return daemon::ReadDaemonEndpoint(announced).ok(); }));
  const std::string rank0 = absl::StrCat("trainer.rank0=", daemon::ReadDaemonEndpoint(announced)->grpc);
  auto alone =
      run.LaunchDaemon("trainer", 1, {"trainer.rank=1", rank0, absl::StrCat("run.dir=", run.temp_dir(), "/alone")});
  ASSERT_THAT(alone, IsOk());
  auto exit = (*alone)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_NE(exit->code, 0);
  EXPECT_THAT((*alone)->Log(), AllOf(HasSubstr("WRONG_SECRET"), HasSubstr("all ranks share that folder"),
                                     HasSubstr("need mutual TLS or a bearer token")));
  auto second = run.LaunchDaemon("trainer", 1, {"trainer.rank=1", rank0});
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT((*first)->WaitForLogLine("all 2 trainer ranks are there", kPatience), IsOk());
}

}  // namespace
}  // namespace syncopate::testing::trainer_ranks_test
