#include "synchronizer/attempts/sync_coordinator.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"
#include "synchronizer/transport/transport_traits.h"

// States of a replica in the coordinator's view:
//
//   up to date --a version is published--> behind --attempt starts--> in an attempt --ok--> up to date
//                                            ^                             |
//                                            |<---- back-off runs out -----| failed: back-off doubles each time
//                                            |<---- at once ---------------| its group was lost through another
//                                            |<---- next publication ------| superseded
//                                            |<---- a change --------------| refused for good
//   a change: the replica's ranks or the sources change, a version is published, or Trigger is called
//   held:     behind, and left out while it reports that it takes no version (it sleeps); retried if it refuses a
//             Prepare with HELD
//   laggard:  behind, and gets attempts of its own until one succeeds
//   unchecked: takes part in attempts that check weights until one succeeds, also when it is up to date
//   lacks the base weights of the newest version: takes part in attempts that send them
//
// If a transport forms groups, a rehearsal forms the group ahead of need, when no replica is behind.
namespace syncopate::synchronizer {
namespace {

constexpr double kDeadlineMedians = 4;
constexpr absl::Duration kShortestForming = absl::Milliseconds(20);  // a faster connect had no group to form
constexpr int kSupersededAlone = 2;  // superseded this often in a row: wait for the next publication
constexpr int kCheckFactor = 20;     // digesting large weights again takes seconds on a CPU
constexpr int kRegroupFactor = 3;    // aborting a communicator takes 0.3 to 0.6 s, more on a busy host

// Whether a repeated request would be refused again as long as neither the sources nor the replica change.
bool IsPermanent(const std::string& reason) {
  constexpr const char* kPermanent[] = {reason::kModelMismatch, reason::kLayoutMismatch,   reason::kDtypeMismatch,
                                        reason::kPlanMismatch,  reason::kPlanIncomplete,   reason::kNcclMismatch,
                                        reason::kBadLayout,     reason::kTransportUnknown, reason::kNoCommonTransport,
                                        reason::kNotASource,    reason::kNotAReceiver};
  return absl::c_linear_search(kPermanent, reason);
}

}  // namespace

absl::Status SyncCoordinator::Options::Validate() const {
  if (min_deadline > absl::ZeroDuration() && prepare_deadline > absl::ZeroDuration() &&
      rehearse_after >= absl::ZeroDuration() && backoff > absl::ZeroDuration() && max_backoff >= backoff) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               absl::StrFormat("deadlines %s and %s and back-off %s to %s must be positive and in order",
                               absl::FormatDuration(min_deadline), absl::FormatDuration(prepare_deadline),
                               absl::FormatDuration(backoff), absl::FormatDuration(max_backoff)));
}

AttemptOutput SyncCoordinator::SetSources(SourceGroup sources, absl::Time now) {
  AttemptOutput output;
  for (auto& [id, attempt] : attempts_) {
    // An attempt continues as long as all of its sources are present; additional ranks do not matter.
    bool kept = absl::c_all_of(attempt.spec().sources, [&sources](const MemberId& used) {
      return absl::c_any_of(sources.ranks, [&used](const SyncPeer& peer) { return peer.id == used; });
    });
    if (!kept) output.Append(attempt.EndSources("SOURCE_LOST", "a trainer rank is no longer reachable", now));
  }
  // A group formed with other sources is useless. The new group is rehearsed once no more members join.
  if (sources.ranks != sources_.ranks) rehearse_at_ = now + options_.rehearse_after;
  bool same_model = sources_.manifest != nullptr && sources_.manifest == sources.manifest;
  sources_ = std::move(sources);
  if (!same_model) plans_.emplace(sources_.manifest);
  ForgetRefusals();
  output = ContinueAfter(std::move(output), now);
  output.Append(StartAttempts(0.0, now));
  return output;
}

AttemptOutput SyncCoordinator::SetReceiver(ReceiverReplica replica, absl::Time now) {
  AttemptOutput output;
  auto found = receivers_.find(replica.replica_id);
  if (found != receivers_.end() && found->second.replica.ranks != replica.ranks) {
    output = RemoveReceiver(replica.replica_id, "MEMBER_LOST", "a new process took its place", now);
  }
  if (!receivers_.contains(replica.replica_id)) rehearse_at_ = now + options_.rehearse_after;
  State& state = receivers_[replica.replica_id];
  if (state.replica.held != replica.held) {
    rehearse_at_ = now + options_.rehearse_after;  // the next sync has one member more, or fewer
    // The replica takes versions again: nothing else delayed it.
    if (replica.held.empty()) state.not_before = absl::InfinitePast();
  }
  state.replica = std::move(replica);
  output.Append(StartAttempts(0.0, now));
  return output;
}

AttemptOutput SyncCoordinator::RemoveReceiver(const std::string& replica_id, const std::string& reason,
                                              const std::string& detail, absl::Time now) {
  auto found = receivers_.find(replica_id);
  if (found == receivers_.end()) return {};
  AttemptOutput output;
  for (auto& [id, attempt] : attempts_) {
    // A rehearsal includes every replica and is not recorded as any replica's own attempt.
    const bool part = id == found->second.attempt || attempt.spec().rehearsal;
    if (part) output.Append(attempt.EndReceiver(replica_id, reason, detail, now));
  }
  receivers_.erase(found);
  rehearse_at_ = now + options_.rehearse_after;
  return ContinueAfter(std::move(output), now);
}

AttemptOutput SyncCoordinator::Publish(const PublishedVersion& version, double stage_seconds, absl::Time now) {
  newest_ = version;
  // A replica that is slower than publications waits for this interval before it tries again.
  if (published_ != absl::InfinitePast()) publish_interval_ = now - published_;
  published_ = now;
  for (auto& [replica_id, state] : receivers_) {
    if (state.wants_newer) state.not_before = absl::InfinitePast();
  }
  ForgetRefusals();
  return StartAttempts(stage_seconds, now);
}

AttemptOutput SyncCoordinator::OnReport(const MemberId& from, const SyncReport& report, absl::Time now) {
  auto attempt = attempts_.find(report.attempt);
  // The attempt ended before the report arrived. The sender has received, or will receive, Finish.
  if (attempt == attempts_.end()) return {};
  return ContinueAfter(attempt->second.OnReport(from, report, now), now);
}

AttemptOutput SyncCoordinator::Trigger(absl::Time now) {
  const bool checks = newest_.has_value() && newest_->subset.base_digest != 0;
  for (auto& [replica_id, state] : receivers_) {
    state.not_before = absl::InfinitePast();
    state.unchecked = checks;
  }
  ForgetRefusals();
  return StartAttempts(0.0, now);
}

void SyncCoordinator::ForgetRefusals() {
  for (auto& [replica_id, state] : receivers_) state.refusal.clear();
}

AttemptOutput SyncCoordinator::Tick(absl::Time now) {
  AttemptOutput output;
  for (auto& [id, attempt] : attempts_) {
    if (attempt.NextDeadline() <= now) output.Append(attempt.Tick(now));
  }
  output = ContinueAfter(std::move(output), now);
  output.Append(StartAttempts(0.0, now));
  return output;
}

void SyncCoordinator::Postpone(absl::Duration by) {
  for (auto& [id, attempt] : attempts_) attempt.Postpone(by);
}

absl::Time SyncCoordinator::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, attempt] : attempts_) next = std::min(next, attempt.NextDeadline());
  // No replica waits for weights, so only a rehearsal can become due.
  if (Idle()) return std::min(next, rehearse_at_);
  if (!CanSend()) return next;
  for (const auto& [replica_id, state] : receivers_) {
    if (state.attempt == 0 && WantsVersion(state)) next = std::min(next, state.not_before);
  }
  return next;
}

int SyncCoordinator::behind() const {
  return static_cast<int>(absl::c_count_if(
      receivers_, [this](const auto& entry) { return IsBehind(entry.second) && entry.second.replica.held.empty(); }));
}

int SyncCoordinator::unchecked() const {
  return static_cast<int>(absl::c_count_if(receivers_, [](const auto& entry) { return entry.second.unchecked; }));
}

int SyncCoordinator::attempts_under_way() const {
  return static_cast<int>(
      absl::c_count_if(attempts_, [](const auto& entry) { return !entry.second.spec().rehearsal; }));
}

int64_t SyncCoordinator::MakeAttempt(const std::string& replica_id) const {
  auto found = receivers_.find(replica_id);
  return found == receivers_.end() ? 0 : found->second.attempt;
}

std::string SyncCoordinator::WhyLeftAlone(const std::string& replica_id) const {
  auto found = receivers_.find(replica_id);
  if (found == receivers_.end() || !IsBehind(found->second)) return "";
  const std::string& held = found->second.replica.held;
  if (!held.empty()) return absl::StrFormat("not synced: %s; it is as soon as it takes versions again", held);
  if (found->second.refusal.empty()) return "";
  return absl::StrFormat("not synced: %s; tried again when it or the trainer changes, or at the next version",
                         found->second.refusal);
}

absl::Duration SyncCoordinator::CurrentDeadline() const {
  if (recent_seconds_.empty()) return options_.min_deadline;
  std::vector<double> sorted(recent_seconds_.begin(), recent_seconds_.end());
  auto middle = sorted.begin() + static_cast<int64_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  // The deadline follows the durations of recent syncs, so that a run with large models gets longer deadlines without
  // configuration. The median keeps one stall from stretching the deadline.
  return std::max(options_.min_deadline, absl::Seconds(kDeadlineMedians * *middle));
}

bool SyncCoordinator::IsBehind(const State& state) const {
  return newest_.has_value() && state.replica.serving < newest_->version;
}

bool SyncCoordinator::LacksBase(const State& state) const {
  const uint64_t base = newest_->subset.base_digest;
  return base != 0 && state.replica.base_digest != base;
}

bool SyncCoordinator::CanSend() const {
  return newest_.has_value() && !sources_.ranks.empty() && newest_->version.epoch == sources_.epoch;
}

bool SyncCoordinator::WantsVersion(const State& state) const {
  // A replica that serves a later version than the newest one known has nothing to be compared with.
  const bool wants = IsBehind(state) || (state.unchecked && state.replica.serving == newest_->version);
  return wants && state.refusal.empty() && state.replica.held.empty();
}

bool SyncCoordinator::Idle() const {
  return attempts_.empty() && !sources_.ranks.empty() &&
         !(CanSend() && absl::c_any_of(receivers_, [this](const auto& entry) { return WantsVersion(entry.second); }));
}

AttemptOutput SyncCoordinator::StartAttempts(double stage_seconds, absl::Time now) {
  AttemptOutput output = StartSyncs(stage_seconds, now);
  if (rehearse_at_ <= now && Idle()) output.Append(StartRehearsals(now));
  return output;
}

AttemptOutput SyncCoordinator::StartSyncs(double stage_seconds, absl::Time now) {
  AttemptOutput output;
  if (!CanSend()) return output;
  struct Group {
    Route route;
    std::vector<std::string> replica_ids;
  };
  // Replicas with the same transport and the same plan share one attempt, so that weights leave the sources once for
  // all of them. The ordered map makes the order of attempts deterministic, which the simulation needs. Its key is the
  // transport, the plan, the laggard's name ("" for all others), and whether the base weights are sent
  // and the receivers' weights checked: nobody waits for the base weights or the check of another replica.
  std::map<std::tuple<std::string, uint64_t, std::string, Extras>, Group> groups;
  for (auto& [replica_id, state] : receivers_) {
    if (state.attempt != 0 || !WantsVersion(state) || state.not_before > now) continue;
    absl::StatusOr<Route> route = RouteTo(state.replica);
    if (route.ok()) {
      Group& group = groups[{route->transport.name, route->plan_hash, state.laggard ? replica_id : "",
                             Extras{.sends_base = LacksBase(state), .checks_weights = state.unchecked}}];
      group.replica_ids.push_back(replica_id);
      group.route = *std::move(route);
    } else {
      output.ended.push_back(Refusal(replica_id, route.status()));
      RecordOutcome(output.ended.back(), now);
    }
  }
  // A sync must not wait for a connection that is only rehearsed.
  if (!groups.empty()) output.Append(MakeRehearsalsGiveWay(now));
  for (const auto& [key, group] : groups) {
    output.Append(StartSync(group.replica_ids, group.route, std::get<3>(key), stage_seconds, now));
  }
  return output;
}

AttemptOutput SyncCoordinator::StartRehearsals(absl::Time now) {
  // The next rehearsal waits for the next change: a failed rehearsal is not repeated by itself.
  rehearse_at_ = absl::InfiniteFuture();
  if (options_.transport != "auto" && !FormsGroup(options_.transport)) return {};
  struct Group {
    Route route;
    std::vector<std::string> replica_ids;
  };
  std::map<std::pair<std::string, uint64_t>, Group> groups;  // by transport and plan
  for (const auto& [replica_id, state] : receivers_) {
    if (state.laggard || !state.refusal.empty() || !state.replica.held.empty()) continue;
    absl::StatusOr<Route> route = RouteTo(state.replica);
    if (!route.ok() || !FormsGroup(route->transport.name)) continue;  // a sync reports the reason
    Group& group = groups[{route->transport.name, route->plan_hash}];
    group.replica_ids.push_back(replica_id);
    group.route = *std::move(route);
  }
  AttemptOutput output;
  for (const auto& [key, group] : groups) output.Append(Rehearse(group.replica_ids, group.route, now));
  return output;
}

AttemptOutput SyncCoordinator::MakeRehearsalsGiveWay(absl::Time now) {
  AttemptOutput output;
  for (auto& [id, attempt] : attempts_) {
    if (attempt.spec().rehearsal) output.Append(attempt.GiveWay(now + forming_, now));
  }
  ForgetEnded(output, now);
  return output;
}

absl::StatusOr<SyncCoordinator::Route> SyncCoordinator::RouteTo(const ReceiverReplica& replica) {
  const int32_t world = static_cast<int32_t>(replica.ranks.size());
  Route route;
  route.destination_layout = DestinationLayoutName(sources_.destination_layout, world);
  for (const SyncPeer& peer : replica.ranks) {
    SYNCOPATE_RETURN_IF_ERROR(
        CheckSameLayout(DestinationLayoutName(peer.layout, world), route.destination_layout, replica.replica_id));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto planned, plans_->Get({sources_.layout(), static_cast<int32_t>(sources_.ranks.size()),
                                                        route.destination_layout, world}));
  route.plan_hash = planned->plan.hash();
  SYNCOPATE_ASSIGN_OR_RETURN(route.transport, ChooseTransport(options_.transport, sources_.ranks, replica.ranks));
  return route;
}

SyncAttempt::Spec SyncCoordinator::SpecFor(const std::vector<std::string>& replica_ids, const Route& route,
                                           absl::Time now) {
  SyncAttempt::Spec spec;
  spec.id = next_attempt_++;
  spec.manifest_fingerprint = sources_.manifest->fingerprint();
  spec.plan_hash = route.plan_hash;
  spec.source_layout = SourceLayoutName(sources_.layout(), static_cast<int32_t>(sources_.ranks.size()));
  spec.destination_layout = route.destination_layout;
  spec.transport = route.transport.name;
  spec.transport_reason = route.transport.reason;
  spec.group_transport = FormsGroup(spec.transport);
  spec.receivers_meet = FindTransport(spec.transport)->receivers_meet;
  for (const SyncPeer& peer : sources_.ranks) spec.sources.push_back(peer.id);
  for (const std::string& replica_id : replica_ids) {
    SyncAttempt::Receiver receiver{replica_id, {}};
    for (const SyncPeer& peer : receivers_.at(replica_id).replica.ranks) receiver.ranks.push_back(peer.id);
    spec.receivers.push_back(std::move(receiver));
  }
  spec.begun = now;
  spec.prepare_by = now + options_.prepare_deadline;
  spec.deadline = now + CurrentDeadline();
  return spec;
}

AttemptOutput SyncCoordinator::StartSync(const std::vector<std::string>& replica_ids, const Route& route,
                                         const Extras& extras, double stage_seconds, absl::Time now) {
  SyncAttempt::Spec spec = SpecFor(replica_ids, route, now);
  spec.version = *newest_;
  spec.sends_base = extras.sends_base;
  spec.checks_weights = extras.checks_weights;
  spec.stage_seconds = stage_seconds;
  bool regroups = false;
  for (const std::string& replica_id : replica_ids) {
    State& state = receivers_.at(replica_id);
    state.attempt = spec.id;
    state.offered_base = newest_->subset.base_digest;
    regroups = regroups || state.regroups;
  }
  // Prepare aborts the old group's communicator, which takes long.
  if (regroups) spec.prepare_by = now + options_.prepare_deadline * kRegroupFactor;
  if (extras.checks_weights) spec.prepare_by = now + options_.prepare_deadline * kCheckFactor;
  return Begin(std::move(spec));
}

AttemptOutput SyncCoordinator::Rehearse(const std::vector<std::string>& replica_ids, const Route& route,
                                        absl::Time now) {
  SyncAttempt::Spec spec = SpecFor(replica_ids, route, now);
  std::vector<MemberId> ranks;
  for (const SyncAttempt::Receiver& receiver : spec.receivers) absl::c_copy(receiver.ranks, std::back_inserter(ranks));
  const std::string group = GroupName(spec.sources, ranks);
  // All ranks keep this group's communicator, so there is nothing to form.
  if (absl::c_linear_search(groups_, group)) return {};
  RememberGroup(group);
  spec.rehearsal = true;
  return Begin(std::move(spec));
}

AttemptOutput SyncCoordinator::Begin(SyncAttempt::Spec spec) {
  const int64_t id = spec.id;
  return attempts_.emplace(id, SyncAttempt(std::move(spec))).first->second.Begin();
}

void SyncCoordinator::RememberGroup(const std::string& name) {
  std::erase(groups_, name);
  groups_.push_back(name);
  if (groups_.size() > kKeptGroups) groups_.pop_front();
}

AttemptOutput SyncCoordinator::ContinueAfter(AttemptOutput output, absl::Time now) {
  if (output.ended.empty()) return output;
  ForgetEnded(output, now);
  output.Append(StartAttempts(0.0, now));
  return output;
}

void SyncCoordinator::ForgetEnded(const AttemptOutput& output, absl::Time now) {
  for (const SyncRecord& record : output.ended) RecordOutcome(record, now);
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const SyncAttempt& ended = attempt->second;
    if (ended.done() && ended.spec().group_transport && !ended.group().empty()) RememberGroup(ended.group());
    attempt = ended.done() ? attempts_.erase(attempt) : std::next(attempt);
  }
}

void SyncCoordinator::RecordOutcome(const SyncRecord& record, absl::Time now) {
  // Forming time is measured only on records that had to form a group; kept communicators connect in almost no time.
  const absl::Duration connect = absl::Seconds(record.connect_seconds);
  if (connect >= kShortestForming && (record.ok() || record.reason == kConnected)) forming_ = connect;
  if (record.rehearsal()) return;
  if (record.ok()) {
    recent_seconds_.push_back(record.seconds.total);
    if (recent_seconds_.size() > kMedianOver) recent_seconds_.pop_front();
  }
  auto found = receivers_.find(record.replica_id);
  if (found == receivers_.end()) return;
  State& state = found->second;
  if (state.laggard || !record.ok()) rehearse_at_ = std::min(rehearse_at_, now);  // the next sync has other members
  state.attempt = 0;
  state.wants_newer = false;
  // If another member broke the group, this replica did nothing wrong: no failure and no back-off is counted below.
  state.regroups = record.reason == reason::kGroupLost;
  state.not_before = absl::InfinitePast();
  if (!record.superseded()) state.superseded = 0;
  if (record.ok()) {
    state.failures = 0;
    state.laggard = false;
    const auto attempt = attempts_.find(record.attempt);
    if (attempt != attempts_.end() && attempt->second.spec().checks_weights) state.unchecked = false;
    state.replica.serving = record.version;
    state.replica.base_digest = state.offered_base;
  } else if (record.superseded()) {
    // The bits are gone, so the same version cannot be requested again. A replica that was superseded twice in a row is
    // slower than publications: it skips this version and joins all others at the next publication.
    const bool none_newer = record.version == newest_->version;
    const bool left_behind = ++state.superseded >= kSupersededAlone && receivers_.size() > 1;
    state.wants_newer = none_newer || left_behind;
    if (none_newer) {
      state.not_before = now + options_.max_backoff;
    } else if (left_behind) {
      state.not_before = now + std::clamp(publish_interval_, options_.backoff, options_.max_backoff);
    }
  } else if (record.held()) {
    state.not_before = now + options_.max_backoff;  // unless it reports earlier that it takes versions again
  } else if (record.reason == reason::kBaseLacking) {
    state.replica.base_digest = 0;  // its next attempt, at once, is one that sends the base
  } else if (record.reason == reason::kBaseHeld) {
    state.replica.base_digest = state.offered_base;  // and the next one, at once, one that does not
  } else if (IsPermanent(record.reason)) {
    state.refusal = record.reason;  // left alone until the replica, the sources or the version changes
  } else if (record.reason != reason::kGroupLost) {
    ++state.failures;
    // The replica made the others wait at the barrier. Its next attempts include no other replica.
    if (record.reason == reason::kNotPrepared || record.reason == reason::kDeadline) state.laggard = true;
    double doubled = std::exp2(std::min(state.failures, 16) - 1);
    state.not_before = now + std::min(options_.max_backoff, options_.backoff * doubled);
  }
}

SyncRecord SyncCoordinator::Refusal(const std::string& replica_id, const absl::Status& status) const {
  SyncRecord record;
  record.version = newest_->version;
  record.replica_id = replica_id;
  record.SetResult(ErrorReason(status));
  record.detail = std::string(status.message());
  return record;
}

}  // namespace syncopate::synchronizer
