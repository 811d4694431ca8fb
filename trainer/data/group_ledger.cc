// One class, above 700 lines: leases, log, steps and kept tokens of a group are one state.
#include "trainer/data/group_ledger.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/data/lease_dealer.h"
#include "trainer/loss/advantages.h"

// The states of one group of one prompt. A word in capitals is a record of the log, durable before any peer is told.
//
//   waiting --Lease: the gate admits it--> leased --Submit: a right answer--> ACCEPTED --TakeBatch--> TAKEN, consumed
//      ^                                     |                                    |
//      |<-- revoked, returned or refused ----|                                    |
//      |    (a new attempt; after max_failures of them: DROPPED as failed, consumed; one whose reward failed rests)
//      |<-- DROPPED as stale (it would break the bound), or as rolled back -------|
//
//   leased, late, and the trainer waits for it: a second attempt is leased beside the first; the first right answer of
//   either goes on, and only the loss of the last live attempt counts as a lost lease above
//   a right answer without signal, where such groups are replaced: DROPPED as filtered, consumed
//   leased, its last attempt is lost, and tokens of it are kept --> kept --Lease: as it was admitted--> leased
//   a row that is no prompt: DROPPED as skipped, consumed
//   leased, and a full batch waits for its deadline alone: with OnDeadline::kDrop DROPPED as past its deadline, consumed.
//   With OnDeadline::kMask no batch waits for a deadline
//   a prompt of a supervised step: waiting --SupervisedBatch::Gather--> gathered --TakeBatch--> TAKEN, consumed
//
// At most one attempt at a group is accepted, so a later answer to it is a duplicate and trains nothing.
// The gate counts what is leased, accepted and taken, so a group that leaves these states gives its admission back.
namespace syncopate::trainer {

PromptQueue::Options GroupLedger::QueueOptions(const Options& options, const PromptSource& prompts) {
  return {.prompts_per_pass = prompts.prompts_per_pass(), .max_groups = options.max_groups};
}

GroupLedger::GroupLedger(const Options& options, const PromptSource* prompts, const PolicyVersion& version,
                         RestoredData restored, absl::Time now)
    : options_(options),
      prompts_(prompts),
      version_(version),
      gate_(options.gate, version.step),
      queue_(std::move(restored.queue)),
      partial_(options.partial_bytes),
      failures_(options.max_failures),
      rewards_(options.max_reward_failures),
      rules_({.vocab_size = options.vocab_size > 0 ? options.vocab_size : prompts->vocab_size(),
              .epoch = version.epoch,
              .max_total_tokens = options.max_total_tokens,
              .context = options.context}),
      replays_(std::move(restored.replays)),
      unlogged_drops_(std::move(restored.drops)),
      supervised_(prompts, options.gate.batch_groups),
      waiting_since_(now) {
  SYNCOPATE_CHECK(options.Validate().ok());
  counters_.rolled_back = static_cast<int64_t>(unlogged_drops_.size());
  if (!replays_.empty()) {
    replay_sequence_ = restored.oldest_sequence;
    gate_ = StalenessGate(options.gate, replays_.back().step - 1);
    gate_.BeginStep({});
  }
  AdoptAccepted(std::move(restored.accepted));
}

// The gate's invariant was true of these groups when the trainer stopped, at this step or a later one. A group that
// does not fit now was admitted under other options.
void GroupLedger::AdoptAccepted(std::vector<RestoredData::Accepted> accepted) {
  std::stable_sort(accepted.begin(), accepted.end(),
                   [](const auto& a, const auto& b) { return a.record.admitted.step < b.record.admitted.step; });
  for (RestoredData::Accepted& one : accepted) {
    const LeaseId id = one.record.group->lease;
    const int64_t start = one.record.admitted.step;
    last_sequence_ = std::max(last_sequence_, one.sequence);
    if (!gate_.MayKeep(start)) {
      unlogged_drops_.push_back({id, DropReason::kStale, std::move(one.record.group)});
      ++counters_.dropped_stale;
      queue_.PutBack(id.group);
      continue;
    }
    gate_.Admit(id.group, start);
    gate_.Complete(id.group);
    Group group{.stage = Stage::kCompleted, .answer = std::move(one.record.group), .sequence = one.sequence};
    group.lease.id = id;
    group.lease.version = one.record.admitted;
    groups_[id.group] = std::move(group);
  }
}

// -- Rollouters

RolloutSessions::Connected GroupLedger::Connect(const MemberId& member) {
  RolloutSessions::Connected connected = sessions_.Add(member);
  if (connected.replaced.has_value()) Disconnect(*connected.replaced);
  return connected;
}

void GroupLedger::OnServing(SessionId session, const PolicyVersion& version) {
  if (RolloutSession* found = sessions_.Find(session)) found->serving = version;
}

void GroupLedger::OnCredits(SessionId session, int32_t groups) {
  RolloutSession* found = sessions_.Find(session);
  if (found == nullptr) return;
  found->room = std::max(groups, 0) * int64_t{options_.samples};
  // A lease that is on its way may count twice in one message, so the usual message counts.
  found->slots.Add(static_cast<double>(found->pace.open() + std::max(groups, 0)));
}

void GroupLedger::Disconnect(SessionId session) {
  for (auto next = groups_.begin(); next != groups_.end();) {
    auto group = next++;
    if (group->second.stage != Stage::kLeased) continue;
    std::vector<Attempt>& attempts = group->second.attempts;
    auto held =
        std::find_if(attempts.begin(), attempts.end(), [&](const Attempt& one) { return one.session == session; });
    if (held == attempts.end()) continue;  // no session holds both
    ++counters_.reissued;
    EndAttempt({group, held});
  }
  sessions_.Remove(session);
}

// -- Leases

bool GroupLedger::MayReceive(const RolloutSession& session) const {
  return session.serving.epoch == version_.epoch && rules_.known_steps.contains(session.serving.step);
}

bool GroupLedger::IsHeldBack(const RolloutSession& session, absl::Time now) const { return session.IsHeldBack(now); }

// A rollouter that failed at this prompt gets it only when no other can have it; else a rollouter that fails at
// everything, and so always has the fewest leases, would get it again and again.
RolloutSession* GroupLedger::NextReceiver(const GroupId& prompt, const Group* group, absl::Time now) {
  std::vector<LeaseDealer::Candidate> candidates;
  bool somebody_can = false;
  for (auto& [id, session] : sessions_.all()) {
    if (!MayReceive(session) || IsHeldBack(session, now)) continue;
    // The gate counts a group that has or had an attempt already.
    if (group == nullptr && !gate_.MayAdmit(session.serving.step)) continue;
    bool can_take = session.room >= options_.samples;
    if (group != nullptr) {
      const PolicyVersion newest = std::max(group->lease.version, partial_.NewestVersion(prompt));
      const bool has_it = !group->attempts.empty() && session.id == group->attempts.front().session;
      can_take = can_take && MayTakeOver(session, newest) && !has_it;
    }
    candidates.push_back({&session, failures_.HasFailed(prompt, session.member.replica_id), can_take});
    somebody_can |= can_take;
  }
  if (!somebody_can) return nullptr;
  return LeaseDealer{Patience(), flow_.median_group_time(), now}.Choose(candidates);
}

bool GroupLedger::MayTakeOver(const RolloutSession& session, const PolicyVersion& admitted) const {
  return session.serving >= admitted;
}

IssuedLease GroupLedger::Issue(const LeaseId& id, RolloutSession* session, Group* group, absl::Time now) {
  session->room -= options_.samples;
  session->pace.OnLeased(now);
  flow_.OnLease(std::max<int64_t>(0, version_.step - session->serving.step));
  ++counters_.leased;
  IssuedLease issued{session->id, group->lease, group->has_second};
  issued.lease.id = id;
  issued.lease.starts = partial_.BeginLease(id, options_.samples, /*reports=*/!group->has_second);
  if (!issued.lease.starts.empty()) {
    ++counters_.continued;
    counters_.kept_tokens += partial_.CountTokens(id.group);
  }
  group->attempts.push_back({id, session->id, {now, now}});
  return issued;
}

std::vector<IssuedLease> GroupLedger::NextLeases(absl::Time now) {
  std::vector<IssuedLease> issued;
  if (NextIsSupervised()) {
    for (const LeaseId& lease : supervised_.Gather(next_replay(), &queue_)) NoteUnusable(lease);
    OnGroupsChanged();
    return issued;
  }
  LeaseKept(now, &issued);
  AddSecondAttempts(now, &issued);
  for (const GroupId& rested : backoff_.TakeRested(now)) queue_.Wake(rested);
  while (std::optional<GroupId> prompt = queue_.Head()) {
    if (IsHeldUp(*prompt)) break;
    RolloutSession* session = NextReceiver(*prompt, nullptr, now);
    if (session == nullptr) break;
    const PromptSource::Readiness readiness = prompts_->CheckReadiness(*prompt);
    if (readiness == PromptSource::Readiness::kComing) break;
    if (readiness == PromptSource::Readiness::kUnusable) {
      const LeaseId id = queue_.Lease();
      queue_.Consume(id.group);
      NoteUnusable(id);
      continue;
    }
    const LeaseId id = queue_.Lease();
    gate_.Admit(id.group, session->serving.step);
    Group group{.lease = MakeLease(options_, id, session->serving, prompts_->At(id.group))};
    issued.push_back(Issue(id, session, &group, now));
    groups_[id.group] = std::move(group);
    OnGroupsChanged();
  }
  return issued;
}

bool GroupLedger::IsHeldUp(const GroupId& prompt) const {
  return prompt == queue_.next() && rewards_.all_fail() && queue_.resting() >= kMostResting;
}

bool GroupLedger::IsLate(const Group& group, absl::Time now) const {
  const std::optional<absl::Duration> patience = Patience();
  if (group.stage != Stage::kLeased || !patience.has_value()) return false;
  const Attempt& first = group.attempts.front();
  const RolloutSession* session = sessions_.Find(first.session);
  return first.times.Age(now) > *patience && (session == nullptr || !session->IsAway());
}

// The group with the earliest deadline is the one that a batch waits for, so it comes first; the others follow if they
// are late themselves. Among groups of one deadline the oldest comes first.
std::vector<GroupId> GroupLedger::LateGroups(absl::Time now) const {
  if (in_step_ || !Patience().has_value() || HasBatch()) return {};
  std::vector<std::tuple<int64_t, absl::Time, GroupId>> running;
  bool any_is_late = false;
  for (const auto& [id, group] : groups_) {
    if (group.stage != Stage::kLeased) continue;
    running.emplace_back(gate_.GetDeadline(id), group.attempts.front().times.issued, id);
    any_is_late |= IsLate(group, now);
  }
  if (!any_is_late) return {};
  std::sort(running.begin(), running.end());
  std::vector<GroupId> late;
  for (const auto& [deadline, issued, id] : running) {
    const Group& group = groups_.at(id);
    const bool is_first = id == std::get<GroupId>(running.front());
    if (!group.has_second && (is_first || IsLate(group, now))) late.push_back(id);
  }
  return late;
}

void GroupLedger::AddSecondAttempts(absl::Time now, std::vector<IssuedLease>* issued) {
  for (const GroupId& id : LateGroups(now)) {
    Group& group = groups_.at(id);
    RolloutSession* session = NextReceiver(id, &group, now);
    if (session == nullptr) continue;
    group.has_second = true;
    issued->push_back(Issue(queue_.NextAttempt(id), session, &group, now));
  }
}

// The lowest prompt first, as they wait.
void GroupLedger::LeaseKept(absl::Time now, std::vector<IssuedLease>* issued) {
  for (auto& [id, group] : groups_) {
    if (group.stage != Stage::kKept) continue;
    RolloutSession* session = NextReceiver(id, &group, now);
    if (session == nullptr) continue;
    group.stage = Stage::kLeased;
    group.has_second = false;
    issued->push_back(Issue(queue_.NextAttempt(id), session, &group, now));
    OnGroupsChanged();
  }
}

void GroupLedger::NoteUnusable(const LeaseId& lease) {
  unlogged_drops_.push_back({lease, DropReason::kSkipped});
  ++counters_.skipped;
  OnGroupsChanged();
}

void GroupLedger::OnProgress(SessionId session, const LeaseId& lease, absl::Time now) {
  const std::optional<Held> held = FindHeld(session, lease);
  if (!held.has_value()) return;
  held->attempt->times.progressed = now;
  sessions_.OnProgress(session);
}

void GroupLedger::OnAway(SessionId session, bool away, absl::Time now) {
  const absl::Time since = sessions_.SetAway(session, away, now);
  if (since == absl::InfiniteFuture()) return;
  for (auto& [id, group] : groups_) {
    if (group.stage != Stage::kLeased) continue;
    for (Attempt& attempt : group.attempts) {
      if (attempt.session == session) attempt.times.AddStandstill(since, now);
    }
  }
}

absl::Status GroupLedger::OnPart(SessionId session, const LeaseId& lease, const AnswerPart& part) {
  const std::optional<Held> held = FindHeld(session, lease);
  if (!held.has_value()) return absl::OkStatus();
  // What is kept goes to another rollouter, whose answer is checked as a whole: a wrong part would be held against that
  // one.
  SYNCOPATE_RETURN_IF_ERROR(CheckPart(part, held->group->second.lease, rules_));
  const absl::Status added = partial_.Add(lease, part);
  return absl::IsInvalidArgument(added) ? added : absl::OkStatus();
}

std::optional<RevokeReason> GroupLedger::Overdue(const LeaseTimes& times, absl::Time now) const {
  return OverdueReason(times, options_.lease_limits, now);
}

std::vector<Revocation> GroupLedger::ExpireLeases(absl::Time now) {
  std::vector<Revocation> revoked;
  for (const auto& [id, group] : groups_) {
    if (group.stage != Stage::kLeased) continue;
    for (const Attempt& attempt : group.attempts) {
      const RolloutSession* session = sessions_.Find(attempt.session);
      if (session != nullptr && session->IsAway()) continue;
      const std::optional<RevokeReason> reason = Overdue(attempt.times, now);
      if (reason.has_value()) revoked.push_back({attempt.session, attempt.id, *reason});
    }
  }
  for (const Revocation& one : revoked) {
    sessions_.OnRevoked(one);
    ++counters_.reissued;
    ++(one.reason == RevokeReason::kStalled ? counters_.stalled : counters_.timed_out);
    if (const std::optional<Held> held = FindHeld(one.session, one.lease)) EndAttempt(*held);
  }
  return revoked;
}

std::vector<Revocation> GroupLedger::DropPastDeadline(absl::Time now) {
  std::vector<Revocation> revoked;
  if (options_.gate.on_deadline != OnDeadline::kDrop || in_step_) return revoked;
  while (const std::optional<GroupId> blocker = FindBlocker()) {
    const auto found = groups_.find(*blocker);
    const bool is_kept = found->second.stage == Stage::kKept;
    // Else it will be completed when the log has its answer.
    if (found->second.stage != Stage::kLeased && !is_kept) break;
    const LeaseId lease = is_kept ? found->second.lease.id : found->second.attempts.front().id;
    if (!is_kept) flow_.OnGroupDropped(now - found->second.attempts.front().times.issued);
    for (const Attempt& attempt : found->second.attempts) {
      revoked.push_back({attempt.session, attempt.id, RevokeReason::kDeadline});
      if (RolloutSession* session = sessions_.Find(attempt.session)) session->pace.OnEnded(attempt.times.issued);
    }
    PutBack(found);
    Consume(lease, DropReason::kPastDeadline);
    ++counters_.past_deadline;
  }
  return revoked;
}

// A prompt that waits or rests is consumed without an answer.
void GroupLedger::Consume(const LeaseId& lease, DropReason reason) {
  failures_.Forget(lease.group);
  backoff_.Forget(lease.group);
  queue_.Consume(lease.group);
  unlogged_drops_.push_back({lease, reason});
  OnGroupsChanged();
}

void GroupLedger::EndAttempt(const Held& held, bool anew) {
  const Attempt over = *held.attempt;
  if (RolloutSession* session = sessions_.Find(over.session)) session->pace.OnEnded(over.times.issued);
  std::vector<Attempt>& attempts = held.group->second.attempts;
  attempts.erase(held.attempt);
  if (!MayPutBack(attempts.size())) return;
  if (anew || !partial_.HasTokens(held.group->first)) return PutBack(held.group);
  held.group->second.stage = Stage::kKept;
  OnGroupsChanged();
}

void GroupLedger::PutBack(Groups::iterator found) {
  const GroupId id = found->first;
  gate_.Release(id);
  groups_.erase(found);
  partial_.Forget(id);
  queue_.PutBack(id);
  OnGroupsChanged();
}

void GroupLedger::Fail(const Held& held, const absl::Status& why) {
  const LeaseId lease = held.attempt->id;
  const RolloutSession* session = sessions_.Find(held.attempt->session);
  const PromptFailures::Fault fault{IsPromptsFault(why), rewards_.any_judged()};
  if (fault.is_reward) rewards_.AddFailed(why);
  ++counters_.failed_attempts;
  // What is kept may be why it failed.
  EndAttempt(held, /*anew=*/true);
  if (session == nullptr) return;
  const bool give_up = failures_.Add(lease.group, *session, fault);
  if (groups_.contains(lease.group)) return;  // another attempt is live and may answer it
  if (!give_up) {
    if (!fault.is_reward) return;
    queue_.Rest(lease.group);
    backoff_.Add(lease.group);
    return;
  }
  Consume(lease, DropReason::kFailed);
  ++counters_.failed;
}

std::optional<GroupLedger::Held> GroupLedger::FindHeld(SessionId session, const LeaseId& lease) {
  auto found = groups_.find(lease.group);
  if (found == groups_.end() || found->second.stage != Stage::kLeased) return std::nullopt;
  std::vector<Attempt>& attempts = found->second.attempts;
  auto held = std::find_if(attempts.begin(), attempts.end(),
                           [&](const Attempt& one) { return IsCurrent(lease, session, one.id, one.session); });
  if (held == attempts.end()) return std::nullopt;
  return Held{found, held};
}

bool GroupLedger::IsCurrent(const LeaseId& submitted, SessionId from, const LeaseId& current, SessionId holder) const {
  return submitted == current && from == holder;
}

std::optional<absl::Time> GroupLedger::Return(SessionId session, const LeaseId& lease, const absl::Status& why) {
  sessions_.OnHeard(session, lease);
  const std::optional<Held> held = FindHeld(session, lease);
  if (!held.has_value()) return std::nullopt;
  const absl::Time issued = held->attempt->times.issued;
  if (IsNobodysFault(why)) {
    ++counters_.reissued;
    EndAttempt(*held);
  } else {
    Fail(*held, why);
  }
  return issued;
}

GroupLedger::Verdict GroupLedger::Submit(SessionId session, SharedGroup group, absl::Time now) {
  const LeaseId id = group->lease;
  sessions_.OnHeard(session, id);
  const std::optional<Held> held = FindHeld(session, id);
  if (absl::Status epoch = CheckEpoch(*group, version_.epoch); !epoch.ok()) {
    if (held.has_value()) EndAttempt(*held, /*anew=*/true);
    return {.result = Result::kFenced, .error = epoch};
  }
  if (!held.has_value()) return VerdictOnNotHeld(id);
  const Lease& lease = held->group->second.lease;
  absl::Status check;
  if (partial_.HasStart(id)) {
    auto whole = std::make_shared<TrajectoryGroup>(*group);
    check = partial_.Join(whole.get());
    group = std::move(whole);
  }
  if (check.ok()) check = CheckSubmission(*group, lease, OldestAllowed(lease), rules_);
  if (!check.ok()) {
    Fail(*held, check);
    return {.result = Result::kInvalid, .error = check};
  }
  return Accept(*held, std::move(group), now);
}

GroupLedger::Verdict GroupLedger::VerdictOnNotHeld(const LeaseId& lease) {
  auto found = groups_.find(lease.group);
  const bool under_way = found != groups_.end();
  const Stage stage = under_way ? found->second.stage : Stage::kTaken;
  const bool counts = under_way ? stage != Stage::kLeased && stage != Stage::kKept && found->second.lease.id == lease
                                : queue_.WasAccepted(lease);
  ++(counts ? counters_.duplicate : counters_.expired);
  if (!counts) return {.result = Result::kExpired};
  const bool durable = stage == Stage::kCompleted || stage == Stage::kTaken;
  return {.result = durable ? Result::kAlreadyAccepted : Result::kPending};
}

GroupLedger::Verdict GroupLedger::Accept(const Held& held, SharedGroup answer, absl::Time now) {
  Group& group = held.group->second;
  const Attempt counts = *held.attempt;
  Verdict verdict{.result = Result::kAccepted};
  for (const Attempt& one : group.attempts) {
    const bool is_other = one.id != counts.id;
    const absl::Duration time = one.times.Age(now);
    if (is_other) {
      verdict.superseded = {one.session, one.id, RevokeReason::kSuperseded};
      ++counters_.superseded;
    }
    RolloutSession* session = sessions_.Find(one.session);
    if (session == nullptr) continue;
    session->pace.OnEnded(one.times.issued);
    if (is_other) {
      session->pace.OnSuperseded(time, Patience());
    } else {
      session->pace.OnAccepted(time, Patience(), now);
      ++session->accepted;
    }
  }
  rewards_.AddJudged();
  flow_.OnGroup(counts.times.Age(now));
  group.attempts = {counts};
  group.lease.id = counts.id;
  group.answer = std::move(answer);
  partial_.Forget(counts.id.group);
  const bool filtered = options_.refill_zero_variance && loss::HasZeroVariance(loss::GetRewards(*group.answer));
  int64_t tokens = 0;
  for (const Trajectory& sample : group.answer->samples) tokens += WrittenTokens(sample);
  flow_.OnAnswers(static_cast<int64_t>(group.answer->samples.size()), tokens, !filtered);
  group.stage = filtered ? Stage::kFiltering : Stage::kLogging;
  if (filtered) {
    DropRecord& drop = std::get<DropRecord>(verdict.record.emplace(DropRecord{counts.id, DropReason::kFiltered}));
    drop.group = group.answer;
    if (options_.recorded.Takes(counts.id.group)) drop.origin = {group.lease.task, group.lease.answer_ids};
  } else {
    verdict.record = AcceptedRecord{group.lease.version, group.answer};
  }
  return verdict;
}

// -- The log

void GroupLedger::OnLogged(const LeaseId& lease, uint64_t sequence) {
  Group& group = groups_.at(lease.group);
  last_sequence_ = sequence;
  ++counters_.accepted;
  failures_.Forget(lease.group);
  backoff_.Forget(lease.group);
  if (group.stage == Stage::kFiltering) {
    ++counters_.filtered;
    gate_.Release(lease.group);
    groups_.erase(lease.group);
    queue_.ConsumeAccepted(lease);
    OnGroupsChanged();
    return;
  }
  SYNCOPATE_CHECK(group.stage == Stage::kLogging);
  group.stage = Stage::kCompleted;
  group.sequence = sequence;
  gate_.Complete(lease.group);
  OnGroupsChanged();
}

void GroupLedger::OnLogFailed(const LeaseId& lease) {
  auto found = groups_.find(lease.group);
  SYNCOPATE_CHECK(found != groups_.end());
  ++counters_.reissued;
  PutBack(found);
}

std::vector<DropRecord> GroupLedger::UnloggedDrops() { return std::exchange(unlogged_drops_, {}); }

uint64_t GroupLedger::OldestNeededSequence() const {
  uint64_t oldest = last_sequence_ + 1;
  if (replay_sequence_ != 0) oldest = std::min(oldest, replay_sequence_);
  for (const auto& [id, group] : groups_) {
    if (group.stage == Stage::kCompleted) oldest = std::min(oldest, group.sequence);
  }
  return oldest;
}

// -- Steps

bool GroupLedger::NoMoreAnswers() const {
  return !queue_.Head().has_value() && queue_.resting() == 0 && leased_groups() == 0;
}

bool GroupLedger::DataEnded() const {
  return !in_step_ && replays_.empty() && supervised_.empty() && queued_groups() == 0 && NoMoreAnswers();
}

std::vector<GroupId> GroupLedger::PickBatch() const {
  std::vector<GroupId> batch = gate_.Pick();
  if (batch.empty() && NoMoreAnswers()) {
    batch = gate_.Pick(std::min(gate_.completed(), options_.gate.batch_groups));
  }
  std::sort(batch.begin(), batch.end());
  return batch;
}

bool GroupLedger::NextIsSupervised() const {
  if (!replays_.empty()) return replays_.front().supervised;
  return version_.step + (in_step_ ? 1 : 0) < options_.supervised_steps;
}

GroupLedger::Take GroupLedger::TakeSupervised() {
  Take take{.is_replay = !replays_.empty(), .groups = supervised_.TakeGroups()};
  take.record.supervised = true;
  if (take.is_replay) {
    replays_.pop_front();
  } else {
    gate_.BeginStep({});
  }
  for (const SharedGroup& group : take.groups) {
    counters_.supervised_tokens += WrittenTokens(group->samples.front());
  }
  return take;
}

bool GroupLedger::HasBatch() const {
  if (in_step_) return false;
  if (NextIsSupervised()) return supervised_.IsReady(next_replay(), queue_);
  if (!replays_.empty()) return true;
  if (!batch_ready_.has_value()) batch_ready_ = !PickBatch().empty();
  return *batch_ready_;
}

std::optional<GroupLedger::Take> GroupLedger::TakeBatch() {
  if (in_step_) return std::nullopt;
  Take take;
  if (NextIsSupervised()) {
    if (!HasBatch()) return std::nullopt;
    take = TakeSupervised();
  } else if (!replays_.empty()) {
    SYNCOPATE_CHECK(replays_.front().step == version_.step + 1);
    take = {.is_replay = true, .groups = std::move(replays_.front().groups)};
    replays_.pop_front();
  } else {
    takes_answers_ = true;
    std::vector<GroupId> batch = PickBatch();
    if (batch.empty()) return std::nullopt;
    for (const GroupId& id : batch) {
      Group& group = groups_.at(id);
      group.stage = Stage::kTaken;
      take.groups.push_back(group.answer);
      if (options_.recorded.Takes(id)) take.origins[id] = {group.lease.task, group.lease.answer_ids};
    }
    gate_.BeginStep(batch);
  }
  in_step_ = true;
  OnGroupsChanged();
  // A take that is repeated may have been logged with another on_deadline.
  const bool masks = options_.gate.on_deadline == OnDeadline::kMask;
  take.record.produces = {version_.epoch, version_.step + 1};
  for (const SharedGroup& group : take.groups) {
    take.record.groups.push_back(group->lease);
    counters_.trained_samples += static_cast<int64_t>(group->samples.size());
    if (!take.record.supervised) {
      take.staleness.Add(*group, version_.step, options_.gate.max_staleness, masks || take.is_replay);
    }
  }
  staleness_.Merge(take.staleness);
  taking_ = take.record.groups;
  taking_supervised_ = take.record.supervised;
  return take;
}

void GroupLedger::OnTakeLogged(uint64_t sequence) {
  // Answers that are on their way to the log may have lower numbers; before the supervised steps are made there are
  // none.
  if (taking_supervised_) last_sequence_ = std::max(last_sequence_, sequence);
  for (const LeaseId& lease : std::exchange(taking_, {})) {
    queue_.ConsumeAccepted(lease);
    groups_.erase(lease.group);
    ++counters_.trained;
  }
  OnGroupsChanged();
  counters_.trained_tokens = staleness_.total_tokens();
}

void GroupLedger::OnStepDone(absl::Time now) {
  SYNCOPATE_CHECK(in_step_ && taking_.empty());
  in_step_ = false;
  ++version_.step;
  if (replays_.empty()) {
    gate_.EndStep();
    replay_sequence_ = 0;
  }
  OnGroupsChanged();
  rules_.known_steps.erase(rules_.known_steps.begin(), rules_.known_steps.lower_bound(OldestKnownStep()));
  const absl::Duration waited = std::exchange(waited_, absl::ZeroDuration());
  if (std::exchange(takes_answers_, false)) {
    flow_.OnRolloutStep(waited, static_cast<int64_t>(sessions_.all().size()), now);
  }
  flow_.OnStepDone(now);
  waiting_since_ = now;
}

int64_t GroupLedger::OldestKnownStep() const {
  return std::min(version_.step - options_.gate.max_staleness, gate_.OldestStart());
}

void GroupLedger::OnPublished(const PolicyVersion& version) {
  SYNCOPATE_CHECK(version.epoch == version_.epoch && version.step <= version_.step);
  rules_.known_steps.insert(version.step);
}

DataState GroupLedger::Snapshot() const {
  SYNCOPATE_CHECK(!in_step_);
  return queue_.State();
}

// -- What people ask

PolicyVersion GroupLedger::NewestServed() const {
  PolicyVersion newest;
  for (const auto& [id, session] : sessions_.all()) {
    const PolicyVersion& serving = session.serving;
    // Steps that are too old to be trained are still served.
    if (serving.epoch == version_.epoch && serving.step <= version_.step) newest = std::max(newest, serving);
  }
  return newest;
}

SizingInputs GroupLedger::MeasureSizing(absl::Time now) const {
  SizingInputs inputs{.gate = options_.gate,
                      .group_seconds = flow_.group_seconds(),
                      .step_seconds = flow_.busy_seconds(),
                      .interval_seconds = flow_.settled_interval_seconds(),
                      .kept_ratio = flow_.kept_ratio(),
                      .lag_steps = flow_.lag_steps()};
  double slots = 0;
  for (const auto& [id, session] : sessions_.all()) {
    // On policy nobody serves the newest version right after a step, so an older one counts, too.
    const bool serves = session.serving.epoch == version_.epoch;
    if (!serves || session.IsHeldBack(now) || session.slots.median() < 1) continue;
    ++inputs.rollouters;
    slots += session.slots.median();
  }
  inputs.slots = static_cast<int64_t>(slots);
  return inputs;
}

Explanation GroupLedger::Explain(absl::Time now) const {
  Explanation explanation = flow_.Explain();
  if (in_step_ || HasBatch()) {
    explanation.waiting_for = "nothing";
    const PolicyVersion next{version_.epoch, version_.step + 1};
    explanation.detail = in_step_           ? absl::StrCat("the step that makes ", next.ToString(), " runs")
                         : replays_.empty() ? "a batch is ready"
                                            : absl::StrCat(replays_.size(), " logged steps are repeated");
    return explanation;
  }
  explanation.since_seconds = absl::ToDoubleSeconds(now - waiting_since_);
  ExplainWait(MakeWaitView(now), &explanation);
  return explanation;
}

WaitView GroupLedger::MakeWaitView(absl::Time now) const {
  WaitView view{.data_ended = DataEnded(),
                .version = version_,
                .batch_groups = options_.gate.batch_groups,
                .queued_groups = queued_groups(),
                .leased_groups = leased_groups(),
                .rollouters = static_cast<int64_t>(sessions_.all().size()),
                .supervised = NextIsSupervised(),
                .stall_limit = options_.lease_limits.stall};
  if (const std::optional<GroupId> blocker = gate_.Blocker(); blocker.has_value()) {
    view.blocker = {MakeHeldLease(groups_.at(*blocker), now), gate_.GetDeadline(*blocker), gate_.step()};
  }
  for (const auto& [id, session] : sessions_.all()) {
    view.quarantined += session.IsQuarantined(now) ? 1 : 0;
    view.stalled += session.IsStalled() ? 1 : 0;
    view.ready += MayReceive(session) && !session.IsHeldBack(now) ? 1 : 0;
  }
  const std::optional<GroupId> head = queue_.Head();
  // While steps are repeated, their rows must be read first: a source forgets the rows before the one asked for.
  if (replays_.empty() && leased_groups() == 0 && head.has_value() &&
      prompts_->CheckReadiness(*head) == PromptSource::Readiness::kComing) {
    view.coming = head;
    view.reading = prompts_->failure();
  }
  const Group* oldest = nullptr;
  for (const auto& [id, group] : groups_) {
    if (group.stage != Stage::kLeased) continue;
    auto issued = [](const Group& one) { return one.attempts.front().times.issued; };
    if (oldest == nullptr || issued(group) < issued(*oldest)) oldest = &group;
  }
  if (oldest != nullptr) view.oldest = MakeHeldLease(*oldest, now);
  return view;
}

WaitView::HeldLease GroupLedger::MakeHeldLease(const Group& group, absl::Time now) const {
  if (group.attempts.empty()) {
    WaitView::HeldLease kept;
    kept.group = group.lease.id.group;
    kept.kept = true;
    return kept;
  }
  auto name = [this](const Attempt& attempt) {
    const RolloutSession* session = sessions_.Find(attempt.session);
    return session == nullptr ? "" : session->member.replica_id;
  };
  const Attempt& first = group.attempts.front();
  WaitView::HeldLease held{.group = group.lease.id.group,
                           .rollouter = name(first),
                           .under_way = group.stage == Stage::kLeased,
                           .age = now - first.times.issued,
                           .still = now - first.times.progressed};
  if (group.attempts.size() > 1) held.second = name(group.attempts[1]);
  return held;
}

}  // namespace syncopate::trainer
