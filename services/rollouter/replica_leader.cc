#include "services/rollouter/replica_leader.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "services/rollouter/rank_codec.h"
#include "services/wire/codec.h"

namespace syncopate::rollouterd {
namespace {

using synchronizer::InstallResult;

v1::ReplicaServiceAttendResponse Settled(const PolicyVersion& version, bool relabelled) {
  v1::ReplicaServiceAttendResponse message;
  *message.mutable_weights_settled()->mutable_version() = wire::ToProto(version);
  message.mutable_weights_settled()->set_relabelled(relabelled);
  return message;
}

class LeadingTarget final : public synchronizer::WeightTarget {
 public:
  LeadingTarget(synchronizer::WeightTarget* engine, ReplicaLeader* leader) : engine_(engine), leader_(leader) {}

  char* shadow() override { return engine_->shadow(); }
  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                        absl::Duration deadline) override {
    return Jointly(version, deadline, ReplicaLeader::End::kExchanged,
                   [&](absl::Duration left) { return engine_->Install(version, digest, left); });
  }
  absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override {
    return Jointly(version, deadline, ReplicaLeader::End::kRelabelled,
                   [&](absl::Duration left) { return engine_->Relabel(version, left); });
  }
  absl::Status BeginAttempt() override { return engine_->BeginAttempt(); }
  void EndAttempt() override { engine_->EndAttempt(); }
  void ExpectInstall() override { engine_->ExpectInstall(); }
  void RestoreShadow() override { engine_->RestoreShadow(); }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return engine_->BeginCheck(std::move(contents));
  }
  bool can_copy_live() const override { return engine_->can_copy_live(); }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override { return engine_->CopyLive(ranges); }
  synchronizer::ReceiverWeights LastSleep() const override { return engine_->LastSleep(); }

 private:
  using Change = std::function<absl::StatusOr<InstallResult>(absl::Duration left)>;
  absl::StatusOr<InstallResult> Jointly(const PolicyVersion& version, absl::Duration deadline, ReplicaLeader::End end,
                                        const Change& change) {
    const absl::Time until = Clock::Real()->Now() + deadline;
    SYNCOPATE_RETURN_IF_ERROR(leader_->Claim(version, deadline));
    absl::StatusOr<InstallResult> result = change(until - Clock::Real()->Now());
    leader_->Settle(version, result.ok() ? end : ReplicaLeader::End::kGivenUp);
    return result;
  }

  synchronizer::WeightTarget* const engine_;
  ReplicaLeader* const leader_;
};

}  // namespace

ReplicaLeader::ReplicaLeader(const rpc::RankStreamsOptions& options)
    : joint_(options.world),
      streams_(Watched(options),
               [this](int32_t rank, const v1::ReplicaServiceAttendRequest& message) { Hear(rank, message); }) {}

rpc::RankStreamsOptions ReplicaLeader::Watched(rpc::RankStreamsOptions options) {
  options.words = {"rollouter rank", "rollout.tensor_parallel", "rollout.device", "rollouter.rank0"};
  options.on_lost = [this, told = std::move(options.on_lost)](const absl::Status& why) {
    {
      MutexLock lock(&mutex_);
      is_over_ = true;
    }
    told(why);
  };
  return options;
}

void ReplicaLeader::Hear(int32_t rank, const v1::ReplicaServiceAttendRequest& message) {
  bool release = false;
  PolicyVersion version;
  {
    MutexLock lock(&mutex_);
    if (message.has_weights_ready()) joint_.Ready(rank, wire::FromProto(message.weights_ready().version()));
    if (message.has_weights_withdrawn()) {
      version = wire::FromProto(message.weights_withdrawn().version());
      release = joint_.Withdraw(rank, version);
    }
  }
  if (release) streams_.WriteTo(rank, Settled(version, /*relabelled=*/false));
}

absl::Status ReplicaLeader::Welcome(const v1::ReplicaServiceAttendResponse::Welcome& welcome) {
  v1::ReplicaServiceAttendResponse message;
  *message.mutable_welcome() = welcome;
  return streams_.Write(message);
}

absl::Status ReplicaLeader::Send(const rollouter::RankCommand& command) { return streams_.Write(ToProto(command)); }

void ReplicaLeader::Stop(const absl::Status& why) {
  v1::ReplicaServiceAttendResponse message;
  message.mutable_stop();
  streams_.Stop(why, message);
}

absl::Status ReplicaLeader::Claim(const PolicyVersion& version, absl::Duration deadline) {
  {
    MutexLock lock(&mutex_);
    auto is_due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_over_ || joint_.AllReady(version); };
    if (!mutex_.AwaitWithTimeout(Condition(&is_due), deadline)) {
      return Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE",
                   absl::StrCat("not all ranks of this replica have ", version.ToString(), " within ",
                                absl::FormatDuration(deadline), "; the older version goes on serving"));
    }
    if (!is_over_) {
      joint_.Claim(version);
      return absl::OkStatus();
    }
  }
  return streams_.lost();
}

void ReplicaLeader::Settle(const PolicyVersion& version, End end) {
  {
    MutexLock lock(&mutex_);
    joint_.Settle(version);
  }
  // The others know of an exchange: it is one of their commands.
  if (end == End::kExchanged) return;
  // A rank that takes no messages is lost, and that is told elsewhere.
  streams_.Write(Settled(version, end == End::kRelabelled)).IgnoreError();
}

std::unique_ptr<synchronizer::WeightTarget> MakeLeadingTarget(synchronizer::WeightTarget* engine,
                                                              ReplicaLeader* leader) {
  return std::make_unique<LeadingTarget>(engine, leader);
}

}  // namespace syncopate::rollouterd
