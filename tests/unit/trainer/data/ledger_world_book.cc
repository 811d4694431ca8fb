// What the ledger promised, and what of it was broken.

#include <algorithm>

#include "tests/unit/trainer/data/ledger_world.h"

namespace syncopate::trainer {

void LedgerWorld::Forget(const LeaseId& lease, SessionId holder) {
  auto found = issued_.find(lease.group);
  if (found != issued_.end() && found->second == std::make_pair(lease.attempt, holder)) issued_.erase(found);
}

void LedgerWorld::Hears(SessionId session, const LeaseId& lease) {
  auto owes = owes_.find(session);
  if (owes != owes_.end() && owes->second.erase(lease) > 0 && owes->second.empty()) owes_.erase(owes);
  auto out = out_.find(lease);
  if (out != out_.end() && out->second.holder == session) out_.erase(out);
}

void LedgerWorld::CheckIssued(const IssuedLease& issued) {
  if (owes_.contains(issued.session)) Wrong("leased to a rollouter that has stalled and not moved since");
  out_[issued.lease.id] = {issued.session, now_, now_};
}

void LedgerWorld::CheckRevoked(const Revocation& revoked) {
  const std::string name = absl::StrCat(revoked.lease.group.ToString(), " attempt ", revoked.lease.attempt);
  auto out = out_.find(revoked.lease);
  if (out == out_.end()) {
    Wrong(absl::StrCat("took back ", name, ", which nobody holds"));
    return;
  }
  const bool stalled = revoked.reason == RevokeReason::kStalled;
  const double least = absl::ToDoubleSeconds(stalled ? options_.lease_limits.stall : options_.lease_limits.timeout);
  if (now_ - (stalled ? out->second.heard : out->second.issued) < least - 1e-6) {
    Wrong(absl::StrCat("took back ", name, " too early"));
  }
  if (stalled) owes_[revoked.session].insert(revoked.lease);
  out_.erase(out);
}

// Right after the ledger was asked which leases are overdue.
void LedgerWorld::CheckNoneStalls() {
  for (const auto& [lease, out] : out_) {
    if (now_ - out.heard < absl::ToDoubleSeconds(options_.lease_limits.stall) + 1e-6) continue;
    Wrong(absl::StrCat("leaves ", lease.group.ToString(), " with a rollouter that has stalled"));
  }
}

void LedgerWorld::CheckVerdict(SessionId session, const SharedGroup& group, const GroupLedger::Verdict& verdict) {
  const LeaseId lease = group->lease;
  outcome_.invalid += verdict.result == Result::kInvalid;
  outcome_.fenced += verdict.result == Result::kFenced;
  if (verdict.result == Result::kAccepted) {
    auto found = issued_.find(lease.group);
    if (found == issued_.end() || found->second != std::make_pair(lease.attempt, session)) {
      ++outcome_.accepted_old_attempts;
    }
    if (static_cast<int32_t>(group->samples.size()) != options_.samples) Wrong("accepted a group that is not whole");
  }
  if (verdict.result == Result::kAlreadyAccepted && !WasAccepted(lease)) {
    Wrong(absl::StrCat("called ", lease.group.ToString(), " accepted, which it is not"));
  }
}

// Durable in the log under this lease.
bool LedgerWorld::WasAccepted(const LeaseId& lease) const {
  if (acknowledged_.contains(lease)) return true;
  for (const LoggedRecord& logged : log_) {
    const auto* accepted = std::get_if<AcceptedRecord>(&logged.record);
    if (accepted != nullptr && accepted->group->lease == lease) return true;
  }
  auto dropped = dropped_.find(lease);
  if (dropped != dropped_.end() && dropped->second == DropReason::kFiltered) return true;
  return std::any_of(history_.begin(), history_.end(), [&](const auto& step) {
    return std::find(step.second.begin(), step.second.end(), lease) != step.second.end();
  });
}

// A version survives if no later epoch began before it.
bool LedgerWorld::Survives(const PolicyVersion& version) const {
  for (auto next = restored_at_.upper_bound(version.epoch); next != restored_at_.end(); ++next) {
    if (next->second < version.step) return false;
  }
  return true;
}

void LedgerWorld::CheckTake(const GroupLedger::Take& take) {
  const int64_t step = take.record.produces.step;
  auto known = durable_takes_.find(step);
  if (take.is_replay && (known == durable_takes_.end() || known->second != take.record.groups)) {
    Wrong(absl::StrCat("the replay of step ", step, " differs from its take"));
  }
  if (!take.is_replay && known != durable_takes_.end()) Wrong(absl::StrCat("step ", step, " is taken afresh"));
  if (!std::is_sorted(take.record.groups.begin(), take.record.groups.end())) Wrong("a batch is not in prompt order");
  if (std::ssize(take.groups) != options_.gate.batch_groups) Wrong("a batch is not full");
  for (size_t i = 0; i < take.groups.size(); ++i) {
    const TrajectoryGroup& group = *take.groups[i];
    const int64_t ordinal = (step - 1) * options_.gate.batch_groups + static_cast<int64_t>(i);
    if (config_.on_policy && group.lease.group.ordinal != ordinal) Wrong("on-policy prompts are out of order");
    if (dropped_.contains(group.lease)) Wrong(absl::StrCat("trains dropped group ", group.lease.group.ToString()));
    for (const Trajectory& sample : group.samples) {
      for (const VersionSpan& span : sample.spans) {
        outcome_.worst_staleness = std::max(outcome_.worst_staleness, step - 1 - span.version.step);
        if (!take.is_replay && !Survives(span.version)) Wrong("trains tokens of a version that was rolled back");
      }
    }
  }
}

void LedgerWorld::CheckEnd() {
  std::map<GroupId, int64_t> trained;
  for (const auto& [step, groups] : history_) {
    for (const LeaseId& lease : groups) {
      if (!trained.emplace(lease.group, step).second) {
        Wrong(absl::StrCat("group ", lease.group.ToString(), " trained twice"));
      }
    }
  }
  if (ledger_ == nullptr) return;
  int64_t queued = 0;
  for (const LeaseId& lease : acknowledged_) {
    auto found = trained.find(lease.group);
    const bool in_history = found != trained.end() &&
                            std::count(history_[found->second].begin(), history_[found->second].end(), lease) == 1;
    if (in_history || dropped_.contains(lease)) continue;
    ++queued;
  }
  const int64_t held = ledger_->queued_groups() + (ledger_->in_step() ? options_.gate.batch_groups : 0) +
                       ledger_->replays_left() * options_.gate.batch_groups;
  if (queued > held) Wrong(absl::StrCat(queued, " acknowledged groups are unaccounted for, ", held, " are queued"));
}

}  // namespace syncopate::trainer
