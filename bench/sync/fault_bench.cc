#include "bench/sync/fault_bench.h"

#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "services/rpc/channel.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::bench {
namespace {

constexpr absl::Duration kStopped = absl::Seconds(3);  // how long a stopped synchronizer stays stopped
constexpr absl::Duration kSyncLimit = absl::Minutes(1);
constexpr absl::Duration kMembersLimit = absl::Seconds(5);
constexpr absl::Duration kPollEvery = absl::Milliseconds(1);

double UnixNow() { return absl::ToDoubleSeconds(Clock::Real()->Now() - absl::UnixEpoch()); }

}  // namespace

FaultBench::FaultBench(const SyncCase& sync_case, const std::vector<SyncSample>& measured, BenchRun* run)
    : sync_case_(sync_case), run_(*run) {
  auto spreads = PhaseSpreads(measured);
  double delay = 0;
  const std::string& stage = sync_case.fault.stage;
  if (stage == "transfer") delay = spreads["prepare"].median + spreads["transfer"].median / 2;
  if (stage == "install") delay = spreads["prepare"].median + spreads["transfer"].median + spreads["verify"].median;
  delay_ = absl::Seconds(delay);
}

std::string FaultBench::Victim(const std::vector<int32_t>& replicas) const {
  if (sync_case_.fault.target == "synchronizer") return kSynchronizerName;
  if (sync_case_.fault.target == "source") return SourceName(sync_case_.sources - 1);
  return ReceiverName(replicas.back(), sync_case_.tensor_parallel - 1);
}

void FaultBench::ExpendGroup(const std::vector<int32_t>& replicas) {
  const std::string& target = sync_case_.fault.target;
  if (target == "synchronizer") run_.Expend(kSynchronizerName);
  for (int32_t rank = 0; target == "source" && rank < sync_case_.sources; ++rank) run_.Expend(SourceName(rank));
  for (int32_t rank = 0; target == "receiver" && rank < sync_case_.tensor_parallel; ++rank) {
    run_.Expend(ReceiverName(replicas.back(), rank));
  }
}

absl::Status FaultBench::AwaitAttempt(int32_t replica) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(run_.synchronizer()));
  auto stub = v1::SynchronizerService::NewStub(channel);
  const absl::Time deadline = Clock::Real()->Now() + kSyncLimit;
  while (Clock::Real()->Now() < deadline) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto members, rpc::CallUnary(stub.get(), &v1::SynchronizerService::Stub::ListMembers,
                                                            v1::ListMembersRequest(), kMembersLimit));
    for (const v1::MemberStatus& member : members.members()) {
      if (member.member().replica_id() == ReplicaName(replica) && member.attempt() != 0) return absl::OkStatus();
    }
    SYNCOPATE_RETURN_IF_ERROR(run_.Idle(kPollEvery));
  }
  return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
               absl::StrCat(ReplicaName(replica), " took part in no weight sync"));
}

absl::StatusOr<FaultOutcome> FaultBench::Run(std::vector<int32_t>* replicas) {
  const std::string victim = Victim(*replicas);
  ExpendGroup(*replicas);
  const bool is_receiver = sync_case_.fault.target == "receiver";
  const int32_t fallen = replicas->back();
  SYNCOPATE_RETURN_IF_ERROR(AwaitAttempt(is_receiver ? fallen : replicas->front()));
  SYNCOPATE_RETURN_IF_ERROR(run_.Idle(delay_));
  const size_t from = run_.samples().size();
  const double struck = UnixNow();
  run_.Signal(victim, kills() ? SIGKILL : SIGSTOP);
  FaultOutcome outcome;
  outcome.ran = true;
  if (is_receiver) {
    replicas->pop_back();
  } else {
    SYNCOPATE_RETURN_IF_ERROR(sync_case_.fault.target == "source" ? MendSources(from) : MendSynchronizer());
    outcome.mended_seconds = UnixNow() - struck;
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<SyncSample> recovered, run_.AwaitSyncs(from, *replicas, 1, kSyncLimit));
  for (const SyncSample& sample : recovered) {
    outcome.recovered_seconds = std::max(outcome.recovered_seconds, sample.recorded - struck);
  }
  for (size_t i = from; i < run_.samples().size(); ++i) {
    const SyncSample& sample = run_.samples()[i];
    if (sample.ok()) continue;
    const double after = std::max(sample.recorded - struck, 0.0);
    // The first report is the time when the loss was noticed.
    if (outcome.reasons.empty() || after < outcome.declared_seconds) outcome.declared_seconds = after;
    outcome.reasons.push_back(absl::StrCat(sample.replica, " ", sample.result));
  }
  // A stopped process would not leave by itself.
  for (int32_t rank = 0; is_receiver && rank < sync_case_.tensor_parallel; ++rank)
    run_.Remove(ReceiverName(fallen, rank));
  SYNCOPATE_RETURN_IF_ERROR(run_.AwaitSyncs(run_.samples().size(), *replicas, 1, kSyncLimit).status());
  outcome.healthy = true;
  return outcome;
}

// A trainer restarts as a whole, in a new epoch: its other ranks end when they have noticed the loss of one, which the
// benchmark waits for, as `syncopate run` does.
absl::Status FaultBench::MendSources(size_t from) {
  auto noticed = [&] {
    bool all = true;
    for (int32_t rank = 0; rank + 1 < sync_case_.sources; ++rank) all &= run_.HasEnded(SourceName(rank));
    return all && (sync_case_.sources > 1 || kills() || run_.samples().size() > from);
  };
  SYNCOPATE_RETURN_IF_ERROR(run_.Await(noticed, kSyncLimit, "that the loss of a trainer rank is noticed"));
  for (int32_t rank = 0; rank < sync_case_.sources; ++rank) run_.Remove(SourceName(rank));
  return run_.StartTrainer(/*resumes=*/true);
}

absl::Status FaultBench::MendSynchronizer() {
  if (kills()) return run_.RestartSynchronizer();
  SYNCOPATE_RETURN_IF_ERROR(run_.Idle(kStopped));
  run_.Signal(kSynchronizerName, SIGCONT);
  return absl::OkStatus();
}

}  // namespace syncopate::bench
