#include "services/rollouter/replica_leader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/rollouter/rank_codec.h"
#include "services/wire/codec.h"

namespace syncopate::rollouterd {
namespace {

v1::ReplicaServiceAttendResponse WeightsSettled(const PolicyVersion& version, bool relabelled) {
  v1::ReplicaServiceAttendResponse message;
  *message.mutable_weights_settled()->mutable_version() = wire::ToProto(version);
  message.mutable_weights_settled()->set_relabelled(relabelled);
  return message;
}

}  // namespace

ReplicaLeader::ReplicaLeader(rpc::RankStreamsOptions options)
    : RankStreams(
          {"rollouter rank", "rollout.tensor_parallel", "rollout.device", "rollouter.rank0",
           "`syncopate run` and `syncopate replica` give all ranks that they start the same", "rollouter.ranks_listen"},
          std::move(options)),
      joint_(others() + 1),
      stops_(others() + 1) {}

void ReplicaLeader::HandleMessage(int32_t rank, const v1::ReplicaServiceAttendRequest& message) {
  bool release = false;
  PolicyVersion version;
  {
    MutexLock lock(&mutex_);
    if (message.has_weights_ready()) joint_.Ready(rank, wire::FromProto(message.weights_ready().version()));
    if (message.has_stop_awaited()) stops_.Ready(rank, wire::FromProto(message.stop_awaited().version()));
    if (message.has_transfer_abandoned()) {
      stops_.Withdraw(rank, wire::FromProto(message.transfer_abandoned().version()));
    }
    // An answer that comes after the deadline belongs to a replica that has ended.
    if (message.has_confirmed()) {
      confirmed_.Add(absl::StrCat(message.confirmed().number()), rank, message.confirmed().no_room());
    }
    if (message.has_weights_withdrawn()) {
      version = wire::FromProto(message.weights_withdrawn().version());
      release = joint_.Withdraw(rank, version);
    }
  }
  // The listener is called without mutex_, because it may call back.
  if (message.has_transfer_abandoned()) {
    MutexLock lock(&listener_mutex_);
    if (on_abandoned_) {
      on_abandoned_(rank, wire::FromProto(message.transfer_abandoned().version()),
                    message.transfer_abandoned().overwritten());
    }
  }
  if (release) OrderOne(rank, WeightsSettled(version, /*relabelled=*/false));
}

absl::Status ReplicaLeader::Send(const rollouter::EngineCommand& command) { return Order(ToProto(command)); }

absl::Status ReplicaLeader::AwaitObeyed(absl::Duration deadline) {
  v1::ReplicaServiceAttendResponse question;
  {
    MutexLock lock(&mutex_);
    question.mutable_confirm()->set_number(++confirms_);
  }
  SYNCOPATE_RETURN_IF_ERROR(Order(question));
  const std::string number = absl::StrCat(question.confirm().number());
  RankReports<std::string>::OfRanks reports;
  absl::Status waited;
  {
    MutexLock lock(&mutex_);
    auto all_have = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return confirmed_.AllIn(number, others()); };
    waited = AwaitReports(deadline, all_have);
    reports = confirmed_.Take(number);
  }
  if (absl::IsDeadlineExceeded(waited)) {
    waited = RankLost(absl::StrCat("not all ranks of this replica have carried out their commands within ",
                                   absl::FormatDuration(deadline), ", ", reports.size(), " of ", others(), " have"));
    Lose(waited);
  }
  SYNCOPATE_RETURN_IF_ERROR(waited);
  for (const auto& [rank, no_room] : reports) {
    if (no_room.empty()) continue;
    return Error(absl::StatusCode::kResourceExhausted, "NO_ROOM",
                 absl::StrCat("rank ", rank, " of this replica has no room on its device: ", no_room));
  }
  return absl::OkStatus();
}

void ReplicaLeader::Stop(const absl::Status& why) { Dismiss(why, v1::ReplicaServiceAttendResponse::Stop()); }

absl::Status ReplicaLeader::Claim(const PolicyVersion& version, absl::Duration deadline) {
  MutexLock lock(&mutex_);
  auto all_ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return joint_.AllReady(version); };
  const absl::Status waited = AwaitReports(deadline, all_ready);
  if (absl::IsDeadlineExceeded(waited)) {
    return Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE",
                 absl::StrCat("not all ranks of this replica have ", version.ToString(), " within ",
                              absl::FormatDuration(deadline), "; the older version goes on serving"));
  }
  SYNCOPATE_RETURN_IF_ERROR(waited);
  joint_.Claim(version);
  return absl::OkStatus();
}

void ReplicaLeader::EndClaim(const PolicyVersion& version, End end) {
  {
    MutexLock lock(&mutex_);
    joint_.EndClaim(version);
  }
  // The other ranks know about an exchange: it is one of their commands.
  if (end == End::kExchanged) return;
  // A rank that accepts no messages is lost, and on_lost reports it.
  Order(WeightsSettled(version, end == End::kRelabelled)).IgnoreError();
}

absl::Status ReplicaLeader::AwaitStopAwaited(const PolicyVersion& version, absl::Duration deadline) {
  MutexLock lock(&mutex_);
  auto all_wait = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stops_.AllReady(version); };
  const absl::Status waited = AwaitReports(deadline, all_wait);
  if (!absl::IsDeadlineExceeded(waited)) return waited;
  return Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE",
               absl::StrCat("not all ranks of this replica can receive ", version.ToString(), " within ",
                            absl::FormatDuration(deadline), "; the older version goes on serving"));
}

void ReplicaLeader::EndStopAwaited(const PolicyVersion& version) {
  MutexLock lock(&mutex_);
  stops_.EndClaim(version);
}

void ReplicaLeader::SendWeightsLost(const PolicyVersion& version) {
  v1::ReplicaServiceAttendResponse message;
  *message.mutable_weights_lost()->mutable_version() = wire::ToProto(version);
  // A rank that accepts no messages is lost, and on_lost reports it.
  Order(message).IgnoreError();
}

void ReplicaLeader::SetAbandonListener(AbandonListener listener) {
  MutexLock lock(&listener_mutex_);
  on_abandoned_ = std::move(listener);
}

}  // namespace syncopate::rollouterd
