#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/file_descriptor.h"
#include "synchronizer/attempts/sync_attempt.h"
#include "tests/gpu/fault/fault_peer.h"
#include "tests/gpu/fault/peer_protocol.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu/transports/gpu_member.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

// Four real processes, two sources and two receivers, on all available GPUs. One process is killed or stopped at each
// stage of a transfer. The others must give up, form a new group without it within five seconds after it was declared
// dead, transfer the version, and have GPU contexts that still work.
namespace syncopate::synchronizer {
namespace {

using ::syncopate::testing::IsOk;
using ::syncopate::testing::Process;
using ::syncopate::testing::TempDir;

constexpr absl::Duration kStartWithin = absl::Seconds(60);  // CUDA starts slowly on a fresh machine
constexpr absl::Duration kAnswerWithin = absl::Seconds(20);
constexpr absl::Duration kRecoverWithin = absl::Seconds(5);

// This program starts itself as its peer, so that there is one file to copy.
constexpr char kPeerFlag[] = "--peer";
constexpr int kPeerArguments = 8;

// One process with one member.
class PeerProcess {
 public:
  PeerProcess(const TempDir& folder, const std::string& transport, MemberId id, int place) : id_(std::move(id)) {
    std::array<int, 2> ends{};
    SYNCOPATE_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()) == 0);
    control_ = FileDescriptor(ends[0]);
    FileDescriptor theirs(ends[1]);
    ::fcntl(control_.get(), F_SETFD, FD_CLOEXEC);
    Process::Options options;
    options.program = std::filesystem::read_symlink("/proc/self/exe").string();
    options.args = {kPeerFlag,
                    absl::StrCat(theirs.get()),
                    transport,
                    id_.role == kTrainerRole ? "source" : "receiver",
                    absl::StrCat(id_.role == kTrainerRole ? id_.rank : id_.replica_id.back() - '0'),
                    absl::StrCat(place),
                    id_.incarnation};
    options.log_path = absl::StrCat(folder.path(), "/", id_.incarnation, ".log");
    absl::StatusOr<std::unique_ptr<Process>> started = Process::Start(options);
    SYNCOPATE_CHECK(started.ok());
    process_ = *std::move(started);
  }

  absl::StatusOr<Json> Ask(const Json& command, absl::Duration within = kAnswerWithin) {
    SYNCOPATE_RETURN_IF_ERROR(SendJson(control_.get(), command));
    return Await(within);
  }
  void Tell(const Json& command) { SendJson(control_.get(), command).IgnoreError(); }
  absl::StatusOr<Json> Await(absl::Duration within = kAnswerWithin) { return ReceiveJson(control_.get(), within); }

  Process& process() { return *process_; }
  const MemberId& id() const { return id_; }
  std::string rendezvous;

 private:
  const MemberId id_;
  FileDescriptor control_;
  std::unique_ptr<Process> process_;
};

struct Fault {
  const char* name;
  bool source;  // source: source rank 1; otherwise the last receiver
  const char* at;
  int n;
  bool fresh = false;  // the member has just joined, so the group forms its communicators
};

// The places where a member can be lost. The middle of receiving is after one announced chunk or round.
constexpr Fault kFaults[] = {
    {"receiver before it joins", false, "start", 0},          {"receiver in the middle", false, "arrival", 0},
    {"receiver after it received", false, "received", 0},     {"source before it joins", true, "start", 0},
    {"receiver that never arrives", false, "start", 0, true}, {"source in the middle", true, "after_ms", 2},
};

class FaultTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    SYNCOPATE_NEED_GPUS(1);
    auto of = GpuCase::Create(GpuTestModel(kFaultModelWidth), GetParam(), kFaultSourceLayout, kFaultDestinationLayout);
    ASSERT_THAT(of.status(), IsOk());
    case_.emplace(*std::move(of));
    for (int32_t rank = 0; rank < 2; ++rank) sources_.push_back(NewSource(rank));
    for (int index = 0; index < 2; ++index) receivers_.push_back(NewReceiver(index));
    for (auto* peer : Everybody()) ASSERT_THAT(peer->Await(kStartWithin).status(), IsOk()) << peer->process().Log();
    Stage(1);
    ASSERT_EQ(Sync(), "") << "before any fault";
  }

  std::unique_ptr<PeerProcess> NewSource(int32_t rank) {
    MemberId id{kTrainerRole, "trainer", rank, 2, absl::StrCat("t", rank, "-", ++incarnations_)};
    return std::make_unique<PeerProcess>(folder_, GetParam(), id, rank);
  }
  std::unique_ptr<PeerProcess> NewReceiver(int index) {
    MemberId id{kRollouterRole, absl::StrCat("rollouter-", index), 0, 1,
                absl::StrCat("r", index, "-", ++incarnations_)};
    return std::make_unique<PeerProcess>(folder_, GetParam(), id, 2 + index);
  }
  std::vector<PeerProcess*> Everybody() {
    std::vector<PeerProcess*> all;
    for (auto& source : sources_) all.push_back(source.get());
    for (auto& receiver : receivers_) all.push_back(receiver.get());
    return all;
  }

  void Stage(int64_t step) {
    step_ = step;
    digests_.clear();
    for (auto& source : sources_) {
      absl::StatusOr<Json> answer = source->Ask({{"do", "stage"}, {"step", step}});
      ASSERT_THAT(answer.status(), IsOk());
      for (uint64_t digest : ComputeDigests(answer->at("digests"))) digests_.push_back(digest);
    }
  }

  // All members prepare; returns "" or the first reason against it.
  std::string PrepareAll() {
    Prepare prepare;
    prepare.attempt = ++attempt_;
    prepare.version = {1, step_};
    prepare.digest = CombineDigests(digests_);
    prepare.manifest_fingerprint = case_->manifest.fingerprint();
    prepare.plan_hash = case_->plan.hash();
    prepare.transport = GetParam();
    prepare.deadline = absl::Seconds(10);
    prepare.receivers = static_cast<int32_t>(receivers_.size());
    prepare.sources = 2;
    prepare.group = Command().group;
    prepare.source_layout = kFaultSourceLayout;
    prepare.destination_layout = kFaultDestinationLayout;
    for (auto* peer : Everybody()) peer->Tell(ToJson(prepare));
    std::string reason;
    for (auto* peer : Everybody()) {
      absl::StatusOr<Json> answer = peer->Await();
      if (!answer.ok()) return "SILENT";
      if (reason.empty()) reason = answer->at("reason");
      peer->rendezvous = answer->at("rendezvous");
    }
    return reason;
  }
  Transfer Command() {
    Transfer transfer;
    transfer.attempt = attempt_;
    transfer.bucket_digests = digests_;
    std::vector<MemberId> sources;
    std::vector<MemberId> receivers;
    for (auto& source : sources_) {
      transfer.sources.push_back({source->id(), source->rendezvous});
      sources.push_back(source->id());
    }
    for (auto& receiver : receivers_) {
      transfer.receivers.push_back({receiver->id(), receiver->rendezvous});
      receivers.push_back(receiver->id());
    }
    transfer.group = GroupName(sources, receivers);
    return transfer;
  }
  void FinishAll() {
    for (auto* peer : Everybody()) peer->Tell({{"do", "finish"}, {"attempt", attempt_}});
  }
  // The result of the current transfer at each member, with one deadline for all.
  std::vector<std::string> Outcomes(const std::vector<PeerProcess*>& peers, absl::Duration within) {
    const absl::Time until = Clock::Real()->Now() + within;
    std::vector<std::string> reasons;
    for (auto* peer : peers) {
      absl::StatusOr<Json> answer = peer->Await(std::max(until - Clock::Real()->Now(), absl::ZeroDuration()));
      reasons.push_back(answer.ok() ? answer->at("reason").get<std::string>() : "SILENT");
    }
    return reasons;
  }
  // Runs one attempt with all remaining members; returns "" or the first reason why it failed.
  std::string Sync() {
    std::string reason = PrepareAll();
    if (reason.empty()) {
      const Json command = ToJson(Command());
      for (auto* peer : Everybody()) peer->Tell(command);
      for (const std::string& outcome : Outcomes(Everybody(), kAnswerWithin)) {
        if (reason.empty()) reason = outcome;
      }
    }
    for (auto& receiver : receivers_) {
      if (!reason.empty()) break;
      absl::StatusOr<Json> installed = receiver->Ask({{"do", "install"}, {"attempt", attempt_}});
      reason = installed.ok() ? installed->at("reason").get<std::string>() : "SILENT";
    }
    FinishAll();
    return reason;
  }
  // Expects that the receivers serve the version and that every CUDA context works.
  void ExpectHealthy() {
    for (auto* peer : Everybody()) {
      absl::StatusOr<Json> answer = peer->Ask({{"do", "check"}});
      ASSERT_THAT(answer.status(), IsOk()) << peer->process().Log();
      EXPECT_EQ(answer->at("reason"), "") << peer->id().incarnation;
      if (peer->id().role == kRollouterRole) {
        EXPECT_EQ(answer->at("serving"), step_);
      }
    }
  }

  void RunFault(const Fault& fault, int signal);

  TempDir folder_;
  std::optional<GpuCase> case_;
  std::vector<std::unique_ptr<PeerProcess>> sources_;
  std::vector<std::unique_ptr<PeerProcess>> receivers_;
  std::vector<uint64_t> digests_;
  int64_t step_ = 0;
  int64_t attempt_ = 0;
  int incarnations_ = 0;
};

void FaultTest::RunFault(const Fault& fault, int signal) {
  if (fault.fresh) {
    receivers_.back() = NewReceiver(1);
    ASSERT_THAT(receivers_.back()->Await(kStartWithin).status(), IsOk());
  }
  // The replacement starts before the fault, as a trainer that restarts would: the start of processes is not measured.
  std::unique_ptr<PeerProcess> spare = fault.source ? NewSource(1) : nullptr;
  if (spare != nullptr) {
    ASSERT_THAT(spare->Await(kStartWithin).status(), IsOk()) << spare->process().Log();
  }
  Stage(step_ + 1);
  if (spare != nullptr) {
    ASSERT_THAT(spare->Ask({{"do", "stage"}, {"step", step_}}).status(), IsOk());
  }
  ASSERT_EQ(PrepareAll(), "");
  PeerProcess* victim = fault.source ? sources_[1].get() : receivers_.back().get();
  std::vector<PeerProcess*> survivors;
  Json command = ToJson(Command());
  for (auto* peer : Everybody()) {
    if (peer == victim) continue;
    survivors.push_back(peer);
    peer->Tell(command);
  }
  command["die"] = {{"signal", signal}, {"at", fault.at}, {"n", fault.n}};
  victim->Tell(command);

  // The lost member is declared dead a second later: the others are told that the attempt is over.
  const std::vector<std::string> early = Outcomes(survivors, absl::Seconds(1));
  const absl::Time declared = Clock::Real()->Now();
  std::vector<PeerProcess*> hanging;
  for (size_t i = 0; i < survivors.size(); ++i) {
    survivors[i]->Tell({{"do", "finish"}, {"attempt", attempt_}});
    if (early[i] == "SILENT") hanging.push_back(survivors[i]);
  }
  for (const std::string& outcome : Outcomes(hanging, kRecoverWithin)) {
    EXPECT_THAT(outcome, ::testing::Not(::testing::AnyOf("SILENT", "ABORT_STUCK", "COPY_STUCK")));
  }
  const absl::Duration gave_up = Clock::Real()->Now() - declared;
  std::unique_ptr<PeerProcess> dead;  // a stopped process stays until the end
  if (fault.source) {
    dead = std::exchange(sources_[1], std::move(spare));
  } else {
    dead = std::move(receivers_.back());
    receivers_.pop_back();
  }
  int attempts = 0;
  std::string reason = "none";
  for (; attempts < 3 && !reason.empty(); ++attempts) reason = Sync();
  const absl::Duration recovered = Clock::Real()->Now() - declared;
  EXPECT_EQ(reason, "");
  EXPECT_LT(recovered, kRecoverWithin);
  ExpectHealthy();
  std::printf("%-5s %-28s %-8s gave up %7.0f ms, recovered %7.0f ms, attempts %d, hung %d of %d\n", GetParam().c_str(),
              fault.name, signal == SIGKILL ? "SIGKILL" : "SIGSTOP", absl::ToDoubleMilliseconds(gave_up),
              absl::ToDoubleMilliseconds(recovered), attempts, static_cast<int>(hanging.size()),
              static_cast<int>(survivors.size()));
  // The group is completed again for the next fault.
  dead.reset();
  if (!fault.source) {
    receivers_.push_back(NewReceiver(1));
    ASSERT_THAT(receivers_.back()->Await(kStartWithin).status(), IsOk());
    Stage(step_ + 1);
    ASSERT_EQ(Sync(), "");
  }
}

TEST_P(FaultTest, TheOthersRecoverFromAMemberThatIsKilledAtAnyStage) {
  for (const Fault& fault : kFaults) {
    SCOPED_TRACE(fault.name);
    RunFault(fault, SIGKILL);
    if (HasFatalFailure()) return;
  }
}

TEST_P(FaultTest, TheOthersRecoverFromAMemberThatIsStoppedAtAnyStage) {
  for (const Fault& fault : kFaults) {
    SCOPED_TRACE(fault.name);
    RunFault(fault, SIGSTOP);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, FaultTest, ::testing::Values("ipc", "nccl"),
                         [](const ::testing::TestParamInfo<std::string>& info) { return info.param; });

}  // namespace
}  // namespace syncopate::synchronizer

int main(int count, char** args) {
  if (count == syncopate::synchronizer::kPeerArguments && std::string(args[1]) == syncopate::synchronizer::kPeerFlag) {
    return syncopate::synchronizer::RunFaultPeer(args + 2);
  }
  ::testing::InitGoogleTest(&count, args);
  return RUN_ALL_TESTS();
}
