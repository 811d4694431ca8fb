// The ledger's promises, and how the book detects that one is broken.

#include <algorithm>

#include "tests/unit/trainer/data/ledger_world.h"

namespace syncopate::trainer {

void LedgerWorld::Forget(const LeaseId& lease, SessionId holder) {
  auto found = live_.find(lease.group);
  if (found == live_.end()) return;
  auto attempt = found->second.attempts.find(lease.attempt);
  if (attempt == found->second.attempts.end() || attempt->second != holder) return;
  found->second.attempts.erase(attempt);
  if (found->second.attempts.empty()) live_.erase(found);
}

void LedgerWorld::Hears(SessionId session, const LeaseId& lease) {
  auto owes = owes_.find(session);
  if (owes != owes_.end() && owes->second.erase(lease) > 0 && owes->second.empty()) owes_.erase(owes);
  auto out = out_.find(lease);
  if (out != out_.end() && out->second.holder == session) out_.erase(out);
}

void LedgerWorld::CheckIssued(const IssuedLease& issued) {
  if (owes_.contains(issued.session)) Wrong("leased to a rollouter that has stalled and not moved since");
  const LeaseId id = issued.lease.id;
  int32_t& last = last_attempts_[id.group];
  if (id.attempt <= last) Wrong(absl::StrCat("issued attempt ", id.attempt, " after attempt ", last));
  last = id.attempt;
  CheckStart(issued);
  if (issued.second || live_.contains(id.group)) {
    CheckSecond(issued);
  } else {
    live_[id.group].admitted = issued.lease.version;
  }
  live_[id.group].attempts[id.attempt] = issued.session;
  out_[id] = {issued.session, now_, now_};
}

void LedgerWorld::CheckStart(const IssuedLease& issued) {
  int64_t tokens = 0;
  for (const AnswerStart& start : issued.lease.starts) tokens += std::ssize(start.tokens);
  const GroupId group = issued.lease.id.group;
  if (tokens != ledger_->partial_answers().CountTokens(group)) {
    Wrong(absl::StrCat("leases ", group.ToString(), " with another number of tokens than are kept"));
  }
  const PolicyVersion newest = ledger_->partial_answers().NewestVersion(group);
  if (ledger_->sessions().Find(issued.session)->serving < newest) {
    Wrong(absl::StrCat("leases ", group.ToString(), " to one that serves older weights than made its tokens"));
  }
}

void LedgerWorld::CheckPlaces(const TrajectoryGroup& group) {
  for (const Trajectory& sample : group.samples) {
    for (size_t place = 0; place < sample.logprobs.size(); ++place) {
      if (sample.logprobs[place] == -0.5f * static_cast<float>(place + 1)) continue;
      Wrong(absl::StrCat("a token of ", group.lease.group.ToString(), " is not at its place"));
    }
  }
}

// Checks a second attempt beside a live one: its time, its rollouter, and the properties that it shares with the first.
void LedgerWorld::CheckSecond(const IssuedLease& issued) {
  ++outcome_.second_attempts;
  const GroupId group = issued.lease.id.group;
  const std::string name = absl::StrCat("a second attempt at ", group.ToString());
  const Live& live = live_[group];
  if (!issued.second || live.attempts.size() != 1) Wrong(absl::StrCat(name, " beside ", live.attempts.size()));
  for (const auto& [attempt, session] : live.attempts) {
    if (session == issued.session) Wrong(absl::StrCat(name, " by the session that has the first"));
  }
  if (issued.lease.version != live.admitted) Wrong(absl::StrCat(name, " is said to be admitted for another version"));
  for (const Rollouter& rollouter : rollouters_) {
    if (rollouter.session != issued.session) continue;
    const PolicyVersion serving = ledger_->sessions().Find(issued.session)->serving;
    if (serving < live.admitted) Wrong(absl::StrCat(name, " by one that serves older weights"));
  }
  if (ledger_->in_step() || ledger_->HasBatch()) Wrong(absl::StrCat(name, " though the trainer does not wait"));
  double oldest = now_;
  for (const auto& [lease, out] : out_) oldest = std::min(oldest, out.issued);
  if (now_ - oldest < 1) Wrong(absl::StrCat(name, " though no lease is old"));
}

// Checks that no group is put back, given up or released while an attempt at it is live.
void LedgerWorld::CheckLiveAreOutstanding() {
  for (const auto& [group, live] : live_) {
    if (ledger_->gate().IsOutstanding(group)) continue;
    Wrong(absl::StrCat(group.ToString(), " is over, though an attempt at it lives"));
  }
}

void LedgerWorld::CheckRevoked(const Revocation& revoked) {
  const std::string name = absl::StrCat(revoked.lease.group.ToString(), " attempt ", revoked.lease.attempt);
  auto out = out_.find(revoked.lease);
  if (out == out_.end()) {
    Wrong(absl::StrCat("took back ", name, ", which nobody holds"));
    return;
  }
  if (revoked.reason == RevokeReason::kSuperseded || revoked.reason == RevokeReason::kDeadline) {
    out_.erase(out);
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

// Checked directly after the ledger was asked which leases are overdue.
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
  auto live = live_.find(lease.group);
  const bool lives = live != live_.end() && live->second.attempts.contains(lease.attempt) &&
                     live->second.attempts.at(lease.attempt) == session;
  if (lives && verdict.result == Result::kInvalid && !spoiled_.contains(group)) {
    Wrong(absl::StrCat("refused a right answer to ", lease.group.ToString(), ": ", verdict.error.ToString()));
  }
  if (lives && (verdict.result == Result::kExpired || verdict.result == Result::kPending)) {
    Wrong(absl::StrCat("refused the answer of an attempt at ", lease.group.ToString(), " that lives"));
  }
  if (verdict.result == Result::kAccepted) {
    outcome_.accepted_old_attempts += lives ? 0 : 1;
    if (lives) CheckAccepted(session, lease, verdict);
    live_.erase(lease.group);
    if (static_cast<int32_t>(group->samples.size()) != options_.samples) Wrong("accepted a group that is not whole");
  }
  if (verdict.result == Result::kAlreadyAccepted && !WasAccepted(lease)) {
    Wrong(absl::StrCat("called ", lease.group.ToString(), " accepted, which it is not"));
  }
}

// One attempt goes to the log under the version for which the group was admitted; the other attempt is revoked.
void LedgerWorld::CheckAccepted(SessionId session, const LeaseId& lease, const GroupLedger::Verdict& verdict) {
  const Live& live = live_.at(lease.group);
  const auto* record = std::get_if<AcceptedRecord>(&*verdict.record);
  if (record != nullptr) CheckPlaces(*record->group);
  if (record != nullptr && record->admitted != live.admitted) Wrong("logged another version than was admitted");
  if (verdict.superseded.has_value() != (live.attempts.size() == 2))
    Wrong("revoked another number of attempts than lived");
  if (!verdict.superseded.has_value()) return;
  ++outcome_.superseded;
  const LeaseId& other = verdict.superseded->lease;
  outcome_.answered_by_second += lease.attempt > other.attempt;
  const auto found = live.attempts.find(other.attempt);
  if (other == lease || other.group != lease.group || found == live.attempts.end() ||
      found->second != verdict.superseded->session || found->second == session) {
    Wrong("revoked another attempt than the one that lived beside");
  }
}

// Whether the group is durable in the log under this lease.
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
  int64_t masked = 0;
  for (size_t i = 0; i < take.groups.size(); ++i) {
    const TrajectoryGroup& group = *take.groups[i];
    if (auto time = times_.find(group.lease); time != times_.end()) {
      outcome_.trained_time += time->second;
      ++outcome_.trained_groups;
      CountTokens(group, step - 1, time->second);
    }
    const int64_t ordinal = (step - 1) * options_.gate.batch_groups + static_cast<int64_t>(i);
    if (config_.on_policy && group.lease.group.ordinal != ordinal) Wrong("on-policy prompts are out of order");
    if (dropped_.contains(group.lease)) Wrong(absl::StrCat("trains dropped group ", group.lease.group.ToString()));
    for (const Trajectory& sample : group.samples) {
      for (const VersionSpan& span : sample.spans) {
        const int64_t staleness = step - 1 - span.version.step;
        const bool is_masked =
            options_.gate.on_deadline == OnDeadline::kMask && staleness > options_.gate.max_staleness;
        masked += is_masked ? span.end - span.begin : 0;
        if (!is_masked) outcome_.worst_staleness = std::max(outcome_.worst_staleness, staleness);
        if (!take.is_replay && !Survives(span.version)) Wrong("trains tokens of a version that was rolled back");
      }
    }
  }
  if (take.staleness.masked_tokens != masked) {
    Wrong(
        absl::StrCat("counts ", take.staleness.masked_tokens, " masked tokens of step ", step, ", which has ", masked));
  }
}

void LedgerWorld::CountTokens(const TrajectoryGroup& group, int64_t step, double seconds) {
  constexpr double kNineOfTen = 3.6;  // nine of ten log-normal times with a median of 1 s and sigma 1 are below it
  for (const Trajectory& sample : group.samples) {
    for (const VersionSpan& span : sample.spans) {
      const int64_t count = span.end - span.begin;
      const int64_t masked = step - span.version.step > options_.gate.max_staleness ? count : 0;
      outcome_.answer_tokens += count;
      outcome_.masked_tokens += masked;
      outcome_.long_tokens += seconds > kNineOfTen ? count : 0;
      outcome_.long_masked_tokens += seconds > kNineOfTen ? masked : 0;
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
