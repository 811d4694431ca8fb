#include "synchronizer/attempts/sync_coordinator.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/plan/sync_plan.h"

namespace syncopate::synchronizer {
namespace {

constexpr double kDeadlineMedians = 4;

bool VersionIsGone(const std::string& reason) { return reason == "SUPERSEDED" || reason == "VERSION_NOT_STAGED"; }

}  // namespace

absl::Status SyncCoordinator::Options::Validate() const {
  if (min_deadline > absl::ZeroDuration() && backoff > absl::ZeroDuration() && max_backoff >= backoff) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               absl::StrFormat("deadline %s and back-off %s to %s must be positive and in order",
                               absl::FormatDuration(min_deadline), absl::FormatDuration(backoff),
                               absl::FormatDuration(max_backoff)));
}

AttemptOutput SyncCoordinator::SetSources(SourceGroup sources, absl::Time now) {
  AttemptOutput output;
  for (auto& [id, attempt] : attempts_) {
    bool kept = absl::c_all_of(attempt.spec().sources, [&sources](const MemberId& used) {
      return absl::c_any_of(sources.ranks, [&used](const SyncPeer& peer) { return peer.id == used; });
    });
    if (!kept) output.Append(attempt.EndSources("SOURCE_LOST", "a trainer rank is no longer reachable", now));
  }
  sources_ = std::move(sources);
  plan_hashes_.clear();
  output = Settle(std::move(output), now);
  output.Append(Form(0.0, now));
  return output;
}

AttemptOutput SyncCoordinator::SetReceiver(ReceiverReplica replica, absl::Time now) {
  AttemptOutput output;
  auto found = receivers_.find(replica.replica_id);
  if (found != receivers_.end() && found->second.replica.ranks != replica.ranks) {
    output = RemoveReceiver(replica.replica_id, "MEMBER_LOST", "a new process took its place", now);
  }
  State& state = receivers_[replica.replica_id];
  state.replica = std::move(replica);
  output.Append(Form(0.0, now));
  return output;
}

AttemptOutput SyncCoordinator::RemoveReceiver(const std::string& replica_id, const std::string& reason,
                                              const std::string& detail, absl::Time now) {
  auto found = receivers_.find(replica_id);
  if (found == receivers_.end()) return {};
  AttemptOutput output;
  auto attempt = attempts_.find(found->second.attempt);
  if (attempt != attempts_.end()) output = attempt->second.EndReceiver(replica_id, reason, detail, now);
  receivers_.erase(found);
  return Settle(std::move(output), now);
}

AttemptOutput SyncCoordinator::Publish(const PublishedVersion& version, double stage_seconds, absl::Time now) {
  newest_ = version;
  for (auto& [replica_id, state] : receivers_) {
    if (state.wants_newer) state.not_before = absl::InfinitePast();
  }
  return Form(stage_seconds, now);
}

AttemptOutput SyncCoordinator::OnReport(const MemberId& from, const SyncReport& report, absl::Time now) {
  auto attempt = attempts_.find(report.attempt);
  if (attempt == attempts_.end()) return {};
  return Settle(attempt->second.OnReport(from, report, now), now);
}

AttemptOutput SyncCoordinator::Trigger(absl::Time now) {
  for (auto& [replica_id, state] : receivers_) state.not_before = absl::InfinitePast();
  return Form(0.0, now);
}

AttemptOutput SyncCoordinator::Tick(absl::Time now) {
  AttemptOutput output;
  for (auto& [id, attempt] : attempts_) {
    if (attempt.spec().deadline <= now) output.Append(attempt.Expire(now));
  }
  output = Settle(std::move(output), now);
  output.Append(Form(0.0, now));
  return output;
}

absl::Time SyncCoordinator::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, attempt] : attempts_) next = std::min(next, attempt.spec().deadline);
  bool can_send = newest_.has_value() && !sources_.ranks.empty() && newest_->version.epoch == sources_.epoch;
  if (!can_send) return next;
  for (const auto& [replica_id, state] : receivers_) {
    if (state.attempt == 0 && IsBehind(state)) next = std::min(next, state.not_before);
  }
  return next;
}

int SyncCoordinator::behind() const {
  return static_cast<int>(absl::c_count_if(receivers_, [this](const auto& entry) { return IsBehind(entry.second); }));
}

int64_t SyncCoordinator::AttemptOf(const std::string& replica_id) const {
  auto found = receivers_.find(replica_id);
  return found == receivers_.end() ? 0 : found->second.attempt;
}

absl::Duration SyncCoordinator::CurrentDeadline() const {
  if (recent_seconds_.empty()) return options_.min_deadline;
  std::vector<double> sorted(recent_seconds_.begin(), recent_seconds_.end());
  auto middle = sorted.begin() + static_cast<int64_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return std::max(options_.min_deadline, absl::Seconds(kDeadlineMedians * *middle));
}

bool SyncCoordinator::IsBehind(const State& state) const {
  return newest_.has_value() && state.replica.serving < newest_->version;
}

AttemptOutput SyncCoordinator::Form(double stage_seconds, absl::Time now) {
  AttemptOutput output;
  bool can_send = newest_.has_value() && !sources_.ranks.empty() && newest_->version.epoch == sources_.epoch;
  if (!can_send) return output;
  std::map<std::string, std::pair<TransportChoice, std::vector<std::string>>> by_transport;
  for (auto& [replica_id, state] : receivers_) {
    if (state.attempt != 0 || !IsBehind(state) || state.not_before > now) continue;
    absl::StatusOr<TransportChoice> choice = Choose(state.replica);
    if (choice.ok()) {
      by_transport[choice->name].first = *choice;
      by_transport[choice->name].second.push_back(replica_id);
    } else {
      output.ended.push_back(Refusal(replica_id, choice.status()));
      NoteEnd(output.ended.back(), now);
    }
  }
  for (const auto& [name, group] : by_transport) {
    output.Append(FormWith(group.second, group.first, stage_seconds, now));
  }
  return output;
}

AttemptOutput SyncCoordinator::FormWith(const std::vector<std::string>& replica_ids, const TransportChoice& choice,
                                        double stage_seconds, absl::Time now) {
  SyncAttempt::Spec spec;
  spec.id = next_attempt_++;
  spec.version = *newest_;
  spec.manifest_fingerprint = sources_.manifest->fingerprint();
  spec.transport = choice.name;
  spec.transport_reason = choice.reason;
  spec.stage_seconds = stage_seconds;
  for (const SyncPeer& peer : sources_.ranks) spec.sources.push_back(peer.id);
  for (const std::string& replica_id : replica_ids) {
    State& state = receivers_.at(replica_id);
    state.attempt = spec.id;
    SyncAttempt::Receiver receiver;
    receiver.replica_id = replica_id;
    for (const SyncPeer& peer : state.replica.ranks) receiver.ranks.push_back(peer.id);
    receiver.plan_hash = PlanHash(static_cast<int32_t>(receiver.ranks.size()));
    spec.receivers.push_back(std::move(receiver));
  }
  spec.begun = now;
  spec.deadline = now + CurrentDeadline();
  int64_t id = spec.id;
  return attempts_.emplace(id, SyncAttempt(std::move(spec))).first->second.Begin();
}

absl::StatusOr<TransportChoice> SyncCoordinator::Choose(const ReceiverReplica& replica) const {
  std::vector<std::vector<std::string>> offers;
  for (const SyncPeer& peer : sources_.ranks) offers.push_back(peer.transports);
  for (const SyncPeer& peer : replica.ranks) offers.push_back(peer.transports);
  return ChooseTransport(options_.transport, offers);
}

uint64_t SyncCoordinator::PlanHash(int32_t receiver_world) {
  auto known = plan_hashes_.find(receiver_world);
  if (known != plan_hashes_.end()) return known->second;
  const Manifest& manifest = *sources_.manifest;
  int32_t source_world = static_cast<int32_t>(sources_.ranks.size());
  auto plan =
      SyncPlan::Create(manifest, Layout::FlatShards(manifest, source_world), Layout::Whole(manifest, receiver_world));
  SYNCOPATE_CHECK(plan.ok());  // flat shards hold every element
  return plan_hashes_[receiver_world] = plan->hash();
}

AttemptOutput SyncCoordinator::Settle(AttemptOutput output, absl::Time now) {
  if (output.ended.empty()) return output;
  for (const SyncRecord& record : output.ended) NoteEnd(record, now);
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    attempt = attempt->second.done() ? attempts_.erase(attempt) : std::next(attempt);
  }
  output.Append(Form(0.0, now));
  return output;
}

void SyncCoordinator::NoteEnd(const SyncRecord& record, absl::Time now) {
  if (record.ok()) {
    recent_seconds_.push_back(record.seconds.at("total"));
    if (recent_seconds_.size() > kMedianOver) recent_seconds_.pop_front();
  }
  auto found = receivers_.find(record.replica_id);
  if (found == receivers_.end()) return;
  State& state = found->second;
  state.attempt = 0;
  state.wants_newer = false;
  state.not_before = absl::InfinitePast();
  if (record.ok()) {
    state.failures = 0;
    state.replica.serving = record.version;
    return;
  }
  ++state.failures;
  if (!VersionIsGone(record.result)) {
    double doubled = std::exp2(std::min(state.failures, 16) - 1);
    state.not_before = now + std::min(options_.max_backoff, options_.backoff * doubled);
  } else if (record.version == newest_->version) {
    state.wants_newer = true;
    state.not_before = now + options_.max_backoff;
  }
}

SyncRecord SyncCoordinator::Refusal(const std::string& replica_id, const absl::Status& status) const {
  SyncRecord record;
  record.version = newest_->version;
  record.replica_id = replica_id;
  record.result = ErrorReason(status);
  record.detail = std::string(status.message());
  for (const char* phase : {"stage", "prepare", "transfer", "verify", "install", "total"}) record.seconds[phase] = 0.0;
  return record;
}

}  // namespace syncopate::synchronizer
