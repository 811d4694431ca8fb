#include "trainer/data/lease_desk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

// The shortest time between two checks for expired leases.
constexpr absl::Duration kExpiryPause = absl::Milliseconds(100);
// After a gap this long between two checks of leases, the owner or the machine counts as having stood still.
constexpr absl::Duration kStoodStill = absl::Seconds(5);
constexpr size_t kMaxReasonBytes = 200;  // of what a peer says
constexpr size_t kMaxNoRewardsBytes = 500;
// How often at most failures of rewards are logged.
constexpr absl::Duration kRewardLineEvery = absl::Seconds(1);

// For people; what the rollouter says about it may contain anything.
absl::Status ReturnedFault(const LeaseId& lease, const absl::Status& why) {
  const absl::string_view text = why.message().substr(0, kMaxReasonBytes);
  return Error(why.code(), IsPromptsFault(why) ? ErrorReason(why) : "RETURNED",
               absl::StrCat("handed back group ", lease.group.ToString(), ": ", absl::CHexEscape(text)));
}

}  // namespace

RolloutSessions::Connected LeaseDesk::Connect(const MemberId& member) {
  const RolloutSessions::Connected connected = ledger_->Connect(member);
  if (connected.replaced.has_value()) Disconnect(*connected.replaced);
  roster_.AddProcess(member);
  return connected;
}

void LeaseDesk::Disconnect(SessionId session) {
  if (auto* known = ledger_->sessions().Find(session)) roster_.RemoveProcess(known->member.incarnation);
  // Both books: a rollouter holds leases of training and of the evaluation at once.
  ledger_->Disconnect(session);
  if (Evaluation* const evaluation = evaluations_.current()) evaluation->OnSessionLost(session);
}

void LeaseDesk::SetServing(SessionId session, const PolicyVersion& version, const PolicyVersion& pinned) {
  ledger_->OnServing(session, version);
  if (auto* known = ledger_->sessions().Find(session)) {
    known->pinned = pinned;
    roster_.SetServing(known->member.incarnation, version);
  }
}

void LeaseDesk::SetCredits(SessionId session, int32_t groups, const std::string& no_rewards) {
  ledger_->OnCredits(session, groups);
  RolloutSession* const found = ledger_->sessions().Find(session);
  if (found != nullptr) found->no_rewards = OneLine(no_rewards, kMaxNoRewardsBytes);
}

void LeaseDesk::SetAway(SessionId session, bool away, absl::Time now) {
  const RolloutSession* const found = ledger_->sessions().Find(session);
  if (found == nullptr) return;
  const absl::Time since = found->away_since;
  const bool is_back = found->IsAway() && !away;
  ledger_->OnAway(session, away, now);
  Evaluation* const evaluation = evaluations_.current();
  if (is_back && evaluation != nullptr) evaluation->OnBack(session, since, now);
}

void LeaseDesk::SetWork(SessionId session, const RolloutRoster::Work& work) {
  if (auto* known = ledger_->sessions().Find(session)) roster_.SetWork(known->member.incarnation, work);
}

void LeaseDesk::RecordProgress(SessionId session, const std::vector<LeaseId>& leases, absl::Time now) {
  for (const LeaseId& lease : leases) {
    if (!Evaluation::IsEvaluation(lease)) {
      ledger_->OnProgress(session, lease, now);
    } else if (Evaluation* const evaluation = evaluations_.current()) {
      evaluation->OnProgress(&ledger_->sessions(), session, lease, now);
    }
  }
}

void LeaseDesk::RecordPart(SessionId session, const LeaseId& lease, const AnswerPart& part) {
  if (Evaluation::IsEvaluation(lease)) return;
  const absl::Status status = ledger_->OnPart(session, lease, part);
  if (status.ok()) return;
  SYNCOPATE_LOG(kWarning, "%s has reported tokens of group %s that are not kept: %s", GetName(session),
                lease.group.ToString(), status.ToString());
}

std::vector<IssuedLease> LeaseDesk::NextLeases(absl::Time now, bool evaluation_only) {
  std::vector<IssuedLease> issued;
  // Evaluation goes first: it is short, and behind training prompts, which never end, it would never start.
  if (Evaluation* const evaluation = evaluations_.current()) issued = evaluation->NextLeases(&ledger_->sessions(), now);
  if (evaluation_only) return issued;
  for (IssuedLease& lease : ledger_->NextLeases(now)) {
    if (lease.second) {
      SYNCOPATE_LOG(kInfo, "group %s is late and the trainer waits: %s is asked for it, too",
                    lease.lease.id.group.ToString(), GetName(lease.session));
    }
    issued.push_back(std::move(lease));
  }
  return issued;
}

bool LeaseDesk::ExpiryIsDue(absl::Time now) {
  const absl::Duration since = now - expiry_looked_at_;
  if (since < kExpiryPause) return false;
  expiry_looked_at_ = now;
  // A trainer that stood still has read no message meanwhile: it reads them first, else it would revoke all leases of a
  // healthy run at once.
  if (since > kStoodStill) no_expiry_before_ = now + kStoodStill;
  return now >= no_expiry_before_;
}

std::vector<Revocation> LeaseDesk::RevokeLeases(absl::Time now) {
  std::vector<Revocation> revoked = ExpireLeases(now);
  for (Revocation& one : ledger_->DropPastDeadline(now)) {
    ++counts_.past_deadline;
    revoked.push_back(std::move(one));
  }
  return revoked;
}

std::vector<Revocation> LeaseDesk::ExpireLeases(absl::Time now) {
  if (!ExpiryIsDue(now)) return {};
  std::vector<Revocation> revoked = ledger_->ExpireLeases(now);
  if (Evaluation* const evaluation = evaluations_.current()) {
    for (const Revocation& one : evaluation->ExpireLeases(&ledger_->sessions(), now)) revoked.push_back(one);
  }
  // One line for each rollouter and reason; one that dies may hold hundreds of leases.
  std::map<std::pair<SessionId, RevokeReason>, int64_t> counts;
  for (const Revocation& one : revoked) {
    ++(one.reason == RevokeReason::kStalled ? counts_.stalled : counts_.timed_out);
    ++counts[{one.session, one.reason}];
  }
  for (const auto& [whose, count] : counts) {
    SYNCOPATE_LOG(kWarning, "%d leases are taken from %s and issued again: %s", count, GetName(whose.first),
                  RevokeReasonName(whose.second));
  }
  return revoked;
}

std::string LeaseDesk::GetName(SessionId session) const {
  const RolloutSession* found = ledger().sessions().Find(session);
  return found == nullptr ? "a rollouter" : found->member.replica_id;
}

GroupLedger::Verdict LeaseDesk::Submit(SessionId session, const SharedGroup& group, absl::Time now) {
  GroupLedger::Verdict verdict{.result = GroupLedger::Result::kExpired};
  if (!Evaluation::IsEvaluation(group->lease)) {
    verdict = ledger_->Submit(session, group, now);
    counts_.superseded += verdict.superseded.has_value() ? 1 : 0;
  } else if (Evaluation* const evaluation = evaluations_.current()) {
    ledger_->sessions().OnHeard(session, group->lease);
    verdict = evaluation->Submit(session, *group, ledger_->rules());
  }
  // An answer of another version, after an install in the middle of an evaluation, is not the rollouter's fault.
  const bool invalid =
      verdict.result == GroupLedger::Result::kInvalid && ErrorReason(verdict.error) != reason::kWrongVersion;
  const bool accepted = verdict.result == GroupLedger::Result::kAccepted;
  if (invalid || accepted) RecordAnswer(session, verdict.error, now);
  if (accepted && Evaluation::IsEvaluation(group->lease)) ledger_->rewards().AddJudged();
  return verdict;
}

void LeaseDesk::RecordAnswer(SessionId session, const absl::Status& judgement, absl::Time now) {
  if (!judgement.ok()) ++counts_.invalid[ErrorReason(judgement)];
  if (ledger_->sessions().OnAnswer(session, judgement, now)) RecordQuarantine(session);
}

void LeaseDesk::RecordQuarantine(SessionId session) {
  ++counts_.quarantines;
  const RolloutSession& found = *ledger_->sessions().Find(session);
  SYNCOPATE_LOG(kError,
                "%s gets no prompts for %s: its last %d answers were all of no "
                "use, the latest: %s",
                found.member.replica_id, absl::FormatDuration(RolloutSessions::kQuarantine),
                RolloutSessions::kInvalidInRow, found.conduct.last_fault.ToString());
}

std::optional<absl::Time> LeaseDesk::Release(SessionId session, const LeaseId& lease, const absl::Status& why) {
  if (!Evaluation::IsEvaluation(lease)) return ledger_->Return(session, lease, why);
  ledger_->sessions().OnHeard(session, lease);
  Evaluation* const evaluation = evaluations_.current();
  return evaluation == nullptr ? std::nullopt : evaluation->Return(session, lease, why);
}

void LeaseDesk::Return(SessionId session, const LeaseId& lease, const absl::Status& why, absl::Time now) {
  const std::optional<absl::Time> issued = Release(session, lease, why);
  if (!issued.has_value()) return;
  if (IsPromptsFault(why)) {
    if (Evaluation::IsEvaluation(lease)) ledger_->rewards().AddFailed(why);
    LogRewardFailure(now);
  }
  if (ledger_->sessions().OnReturn(session, ReturnedFault(lease, why), *issued, now)) RecordQuarantine(session);
}

void LeaseDesk::LogRewardFailure(absl::Time now) {
  const RewardFailures::Figures& figures = ledger_->rewards().figures();
  if (now < next_reward_line_) return;
  next_reward_line_ = now + kRewardLineEvery;
  const int64_t more = figures.failed - std::exchange(reward_failures_logged_, figures.failed);
  SYNCOPATE_LOG(kWarning, "%d groups came back without rewards, %d of the last %d, the last: %s", more,
                figures.recent_failed, figures.recent, figures.last);
}

void LeaseDesk::Reject(SessionId session, const LeaseId& lease, const absl::Status& why, absl::Time now) {
  RecordAnswer(session, why, now);
  Release(session, lease, why);
}

}  // namespace syncopate::trainer
