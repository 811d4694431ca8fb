#include "synchronizer/members/membership.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "base/identity.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

bool Gone(const Member& member) { return member.state == MemberState::kDead || member.state == MemberState::kLeft; }

}  // namespace

absl::Status Membership::Options::Validate() const {
  if (absl::ZeroDuration() < heartbeat && heartbeat < suspect_after && suspect_after < dead_after) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               absl::StrFormat("heartbeat %s, suspect after %s, dead after %s: each must be longer than the one before",
                               absl::FormatDuration(heartbeat), absl::FormatDuration(suspect_after),
                               absl::FormatDuration(dead_after)));
}

absl::Status Membership::CheckMayJoin(const MemberId& id) const {
  SYNCOPATE_RETURN_IF_ERROR(CheckMember(id));
  auto retired = retired_.find(id);
  if (retired == retired_.end()) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, retired->second,
               absl::StrFormat("this incarnation of %s %s rank %d may not join again; start a new process", id.role,
                               id.replica_id, id.rank));
}

std::vector<MemberChange> Membership::Join(SessionId session, Hello hello, absl::Time now) {
  next_deadline_.reset();
  ForgiveOwnAbsence(now);
  ForgetGone(now);
  std::vector<MemberChange> changes;
  MemberKey key = GetKey(hello.member);
  // A forgotten member's former process may still run: after another process has taken its place, it may not come back.
  if (auto before = forgotten_.extract(key); before && before.mapped() != hello.member) {
    Retire(before.mapped(), "REPLACED");
  }
  auto kind = MemberChange::Kind::kJoined;
  SessionId superseded_stream = 0;
  auto found = members_.find(key);
  if (found != members_.end() && found->second.hello.member.incarnation != hello.member.incarnation) {
    Retire(found->second.hello.member, "REPLACED");
    if (!Gone(found->second)) {
      changes.push_back(
          End(key, found->second, MemberChange::Kind::kDead, "REPLACED", "a new process joined in its place", now));
    }
  } else if (found != members_.end() && !Gone(found->second)) {
    // This process has joined before on another stream, which may be half open; messages on it are ignored from now on.
    kind = MemberChange::Kind::kRejoined;
    superseded_stream = found->second.session;
    sessions_.erase(superseded_stream);
  }
  Member& member = members_[key];
  // A hello is complete, so no earlier knowledge is kept.
  member = Member{};
  member.hello = std::move(hello);
  member.session = session;
  member.last_heard = now;
  sessions_[session] = key;
  changes.push_back({kind, key, superseded_stream, superseded_stream == 0 ? "" : reason::kNewStream, ""});
  return changes;
}

std::vector<MemberChange> Membership::Heard(SessionId session, absl::Time now) {
  ForgiveOwnAbsence(now);
  Member* member = FindMutable(session);
  if (member == nullptr) return {};
  member->last_heard = now;
  if (member->state != MemberState::kSuspect) return {};
  next_deadline_.reset();
  member->state = MemberState::kAlive;
  std::vector<MemberChange> changes;
  changes.push_back({MemberChange::Kind::kRecovered, sessions_.at(session), 0, "", ""});
  // This member may end the majority of silent ones.
  if (postpones_deaths()) absl::c_move(UpdatePostponement(now), std::back_inserter(changes));
  return changes;
}

void Membership::Disconnected(SessionId session, absl::Time now) {
  ForgiveOwnAbsence(now);
  // A lost stream is no death: a member has until dead_after to come back, with the weights that it has.
  if (Member* member = FindMutable(session)) member->session = 0;
  sessions_.erase(session);
}

std::vector<MemberChange> Membership::Leave(SessionId session, const std::string& reason, absl::Time now) {
  ForgiveOwnAbsence(now);
  Member* member = FindMutable(session);
  if (member == nullptr) return {};
  MemberKey key = sessions_.at(session);
  return {End(key, *member, MemberChange::Kind::kLeft, reason::kLeft, reason, now)};
}

absl::StatusOr<std::vector<MemberChange>> Membership::Evict(const MemberKey& key, const std::string& reason,
                                                            const std::string& detail, absl::Time now) {
  ForgiveOwnAbsence(now);
  auto found = members_.find(key);
  if (auto before = forgotten_.find(key); found == members_.end() && before != forgotten_.end()) {
    // The member is not listed any more, so there is no change to report, but its process must not come back.
    Retire(before->second, reason);
    return std::vector<MemberChange>();
  }
  if (found == members_.end()) {
    return Error(absl::StatusCode::kNotFound, "UNKNOWN_MEMBER",
                 absl::StrFormat("there is no %s %s rank %d; list the members to see who there is", key.role,
                                 key.replica_id, key.rank));
  }
  Retire(found->second.hello.member, reason);
  if (Gone(found->second)) return std::vector<MemberChange>();
  return std::vector<MemberChange>{End(key, found->second, MemberChange::Kind::kDead, reason, detail, now)};
}

void Membership::SetServing(SessionId session, PolicyVersion serving, uint64_t digest) {
  Member* member = FindMutable(session);
  if (member == nullptr) return;
  member->hello.serving = serving;
  member->hello.serving_digest = digest;
  // An attempt installed what it serves now, so the version is published.
  member->unbacked = {};
}

void Membership::SetHeld(SessionId session, const std::string& why) {
  if (Member* member = FindMutable(session)) member->hello.held = why;
}

void Membership::SetBase(SessionId session, uint64_t base_digest) {
  if (Member* member = FindMutable(session)) member->hello.base_digest = base_digest;
}

void Membership::SetUnbacked(SessionId session, PolicyVersion claimed) {
  if (Member* member = FindMutable(session)) member->unbacked = claimed;
}

void Membership::BeginAnew(absl::Time now) {
  next_deadline_.reset();
  for (auto& [key, member] : members_) {
    if (!Gone(member)) member.last_heard = std::max(member.last_heard, now);
  }
  if (postpones_deaths()) postponed_since_ = std::max(postponed_since_, now);
  last_call_ = std::max(last_call_, now);
}

std::vector<MemberChange> Membership::Tick(absl::Time now) {
  next_deadline_.reset();
  ForgiveOwnAbsence(now);
  ForgetGone(now);
  // Must be first: it decides whether silence means death.
  std::vector<MemberChange> changes = UpdatePostponement(now);
  for (auto& [key, member] : members_) {
    if (Gone(member)) continue;
    absl::Duration silence = now - member.last_heard;
    if (silence >= options_.dead_after && !(postpones_deaths() && key.role == kRollouterRole)) {
      changes.push_back(End(key, member, MemberChange::Kind::kDead, reason::kDeclaredDead,
                            absl::StrFormat("silent for %s", absl::FormatDuration(silence)), now));
    } else if (silence >= options_.suspect_after && member.state == MemberState::kAlive) {
      member.state = MemberState::kSuspect;
      changes.push_back({MemberChange::Kind::kSuspected, key, 0, "", ""});
    }
  }
  return changes;
}

absl::Time Membership::NextDeadline() const {
  // Cached until a change could make it earlier: with many members, each message would otherwise cost a walk over all.
  // A deadline that is too early is harmless.
  if (!next_deadline_.has_value()) next_deadline_ = EarliestDeadline();
  return *next_deadline_;
}

absl::Time Membership::EarliestDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  size_t gone = 0;
  for (const auto& [key, member] : members_) {
    if (Gone(member)) {
      // Surplus members are forgotten as soon as their changes have been handled.
      next = ++gone > kGoneKept ? absl::InfinitePast() : std::min(next, member.gone_since + kGoneFor);
      if (gone > kGoneKept) return next;
      continue;
    }
    bool alive = member.state == MemberState::kAlive;
    absl::Time due = member.last_heard + (alive ? options_.suspect_after : options_.dead_after);
    // A postponed death is checked again when the postponement ends; a member's return is an event of its own.
    if (!alive && postpones_deaths() && key.role == kRollouterRole)
      due = std::max(due, postponed_since_ + options_.max_postponement);
    next = std::min(next, due);
  }
  return next;
}

const Member* Membership::Find(SessionId session) const {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &members_.at(found->second);
}

const Member* Membership::Find(const MemberKey& key) const {
  auto found = members_.find(key);
  return found == members_.end() ? nullptr : &found->second;
}

Member* Membership::FindMutable(SessionId session) {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &members_.at(found->second);
}

void Membership::Retire(const MemberId& id, const std::string& reason) {
  if (!retired_.emplace(id, reason).second) return;  // the first reason is kept
  retired_order_.push_back(id);
  if (retired_order_.size() <= kRetiredKept) return;
  // The oldest entries are dropped to bound memory; their processes ended long ago.
  retired_.erase(retired_order_.front());
  retired_order_.pop_front();
}

MemberChange Membership::End(const MemberKey& key, Member& member, MemberChange::Kind kind, const std::string& reason,
                             const std::string& detail, absl::Time now) {
  next_deadline_.reset();
  MemberChange change{kind, key, member.session, reason, detail};
  sessions_.erase(member.session);
  member.session = 0;
  member.state = kind == MemberChange::Kind::kLeft ? MemberState::kLeft : MemberState::kDead;
  member.gone_since = now;
  member.detail = detail.empty() ? reason : absl::StrFormat("%s: %s", reason, detail);
  return change;
}

void Membership::ForgiveOwnAbsence(absl::Time now) {
  // While any member is alive, NextDeadline() is at most suspect_after away. So a longer gap between two calls means
  // that this process did not run.
  absl::Duration gap = now - last_call_;
  bool was_away = last_call_ != absl::InfinitePast() && gap > options_.suspect_after + options_.heartbeat;
  if (was_away) {
    for (auto& [key, member] : members_) {
      if (!Gone(member)) member.last_heard = std::min(now, member.last_heard + gap);
    }
  }
  last_call_ = std::max(last_call_, now);
}

std::vector<MemberChange> Membership::UpdatePostponement(absl::Time now) {
  int known = 0;
  int silent = 0;
  bool death_due = false;
  for (const auto& [key, member] : members_) {
    if (key.role != kRollouterRole || Gone(member)) continue;
    ++known;
    if (now - member.last_heard >= options_.suspect_after) ++silent;
    if (now - member.last_heard >= options_.dead_after) death_due = true;
  }
  // Processes die one at a time; if most of many go silent at once, the cause is probably a network switch. If there
  // are few rollouters, half of them is no sign.
  bool suspicious = known >= options_.postpone_from && silent * 2 > known;
  if (!suspicious) {
    was_postponed_ = false;
    return EndPostponement("most rollouters are heard again");
  }
  if (postpones_deaths() && now >= postponed_since_ + options_.max_postponement) {
    // Deaths are postponed once for each wave of silence: without this flag the postponement would begin again at once.
    was_postponed_ = true;
    return EndPostponement("still silent: they are declared dead after all");
  }
  if (postpones_deaths() || was_postponed_ || !death_due) return {};
  postponed_since_ = now;
  return {
      {MemberChange::Kind::kDeathsPostponed,
       {},
       0,
       "",
       absl::StrFormat("%d of %d rollouters went silent at once: the network is suspected, no member is declared dead "
                       "for %s",
                       silent, known, absl::FormatDuration(options_.max_postponement))}};
}

std::vector<MemberChange> Membership::EndPostponement(const std::string& detail) {
  if (!postpones_deaths()) return {};
  postponed_since_ = absl::InfiniteFuture();
  return {{MemberChange::Kind::kDeathsResumed, {}, 0, "", detail}};
}

void Membership::ForgetGone(absl::Time now) {
  std::vector<std::pair<absl::Time, std::map<MemberKey, Member>::iterator>> gone;
  for (auto at = members_.begin(); at != members_.end(); ++at) {
    if (Gone(at->second)) gone.emplace_back(at->second.gone_since, at);
  }
  absl::c_stable_sort(gone, [](const auto& a, const auto& b) { return a.first > b.first; });  // the newest first
  for (size_t i = 0; i < gone.size(); ++i) {
    if (i >= kGoneKept || now - gone[i].first >= kGoneFor) Forget(gone[i].second);
  }
}

void Membership::Forget(std::map<MemberKey, Member>::iterator member) {
  // Erases any entry: this many places are gone only if some process restarts without end.
  if (forgotten_.size() >= kForgottenKept) forgotten_.erase(forgotten_.begin());
  forgotten_.insert_or_assign(member->first, member->second.hello.member);
  members_.erase(member);
}

}  // namespace syncopate::synchronizer
