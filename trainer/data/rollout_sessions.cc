#include "trainer/data/rollout_sessions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

constexpr size_t kMaxRemembered = 256;  // names come from peers

}  // namespace

absl::Status LeaseLimits::Validate() const {
  if (stall > absl::ZeroDuration() && stall <= timeout) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               absl::StrCat("a lease may stall for ", absl::FormatDuration(stall), " and last ",
                            absl::FormatDuration(timeout), "; the first must be positive and not the longer"));
}

const char* RevokeReasonName(RevokeReason reason) {
  switch (reason) {
    case RevokeReason::kStalled:
      return "LEASE_STALLED";
    case RevokeReason::kTimeout:
      return "LEASE_TIMEOUT";
    case RevokeReason::kSuperseded:
      return "SUPERSEDED";
    case RevokeReason::kDeadline:
      return "PAST_DEADLINE";
  }
  return "UNKNOWN";
}

void LeaseTimes::AddStandstill(absl::Time since, absl::Time now) {
  stood_still += now - std::max(since, issued);
  progressed += now - std::max(since, progressed);
}

std::optional<RevokeReason> OverdueReason(const LeaseTimes& times, const LeaseLimits& limits, absl::Time now) {
  if (now - times.progressed >= limits.stall) return RevokeReason::kStalled;
  if (times.Age(now) >= limits.timeout) return RevokeReason::kTimeout;
  return std::nullopt;
}

bool IsNobodysFault(const absl::Status& why) {
  return absl::IsCancelled(why) || absl::IsUnavailable(why) || absl::IsAborted(why);
}

bool IsPromptsFault(const absl::Status& why) {
  const std::string reason = ErrorReason(why);
  return reason == reason::kRewardFailed || reason == reason::kEnvironmentFailed;
}

RolloutSessions::Connected RolloutSessions::Add(const MemberId& member) {
  Connected connected;
  for (const auto& [id, session] : sessions_) {
    // Replaces the session of any incarnation: a restarted process must not wait until the dead one's stream is
    // noticed.
    if (session.member.replica_id == member.replica_id) connected.replaced = id;
  }
  connected.session = ++last_;
  RolloutSession& session = sessions_[connected.session] = {.id = connected.session, .member = member};
  if (connected.replaced.has_value()) {
    // The record of bad answers survives a reconnect.
    session.conduct = sessions_.at(*connected.replaced).conduct;
  } else if (auto known = bad_conduct_.extract(member.replica_id)) {
    session.conduct = std::move(known.mapped());
  }
  return connected;
}

void RolloutSessions::Remove(SessionId session) {
  auto found = sessions_.extract(session);
  if (!found) return;
  const std::string& replica = found.mapped().member.replica_id;
  bad_conduct_.erase(replica);
  // Names are the peers' choice, so their number is bounded: beyond it a bad one begins with a clean sheet.
  if (found.mapped().conduct.invalid_in_row == 0 || bad_conduct_.size() >= kMaxRemembered) return;
  bad_conduct_[replica] = found.mapped().conduct;
}

bool RolloutSessions::OnAnswer(SessionId session, const absl::Status& judgement, absl::Time now) {
  RolloutSession* found = Find(session);
  if (found == nullptr) return false;
  if (judgement.ok()) {
    found->conduct.invalid_in_row = 0;
    return false;
  }
  ++found->invalid;
  return CountFault(found, judgement, now);
}

bool RolloutSessions::OnReturn(SessionId session, const absl::Status& why, absl::Time issued, absl::Time now) {
  RolloutSession* found = Find(session);
  if (found == nullptr) return false;
  ++found->returned;
  // Every rollouter would have handed it back.
  if (IsPromptsFault(why)) return false;
  if (IsNobodysFault(why)) {
    // One drain hands back all leases at once: that is one return. A rollouter that hands back what it was leased after
    // the last one does nothing else.
    if (issued < found->conduct.excused_return) return false;
    found->conduct.excused_return = now;
  }
  return CountFault(found, why, now);
}

bool RolloutSessions::CountFault(RolloutSession* session, const absl::Status& fault, absl::Time now) {
  RolloutConduct& conduct = session->conduct;
  conduct.last_fault = fault;
  if (++conduct.invalid_in_row < kInvalidInRow) return false;
  // True once per quarantine, however many bad answers arrive after its beginning.
  const bool begins = !session->IsQuarantined(now);
  conduct.quarantined_until = now + kQuarantine;
  return begins;
}

void RolloutSessions::OnRevoked(const Revocation& revoked) {
  RolloutSession* found = Find(revoked.session);
  if (found != nullptr && revoked.reason == RevokeReason::kStalled) found->stalled.insert(revoked.lease);
}

void RolloutSessions::OnProgress(SessionId session) {
  // Any token shows that it works again.
  if (RolloutSession* found = Find(session)) found->stalled.clear();
}

void RolloutSessions::OnHeard(SessionId session, const LeaseId& lease) {
  if (RolloutSession* found = Find(session)) found->stalled.erase(lease);
}

absl::Time RolloutSessions::SetAway(SessionId session, bool away, absl::Time now) {
  RolloutSession* const found = Find(session);
  if (found == nullptr || found->IsAway() == away) return absl::InfiniteFuture();
  found->pace.SetAway(away, now);
  const absl::Time since = std::exchange(found->away_since, away ? now : absl::InfiniteFuture());
  return away ? absl::InfiniteFuture() : since;
}

RolloutSession* RolloutSessions::Find(SessionId session) {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

const RolloutSession* RolloutSessions::Find(SessionId session) const {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

}  // namespace syncopate::trainer
