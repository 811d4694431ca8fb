#include "trainer/data/prompt_queue.h"

#include <algorithm>

#include "base/status.h"

namespace syncopate::trainer {

const char* DropReasonName(DropReason reason) {
  switch (reason) {
    case DropReason::kFiltered:
      return "filtered";
    case DropReason::kFailed:
      return "failed";
    case DropReason::kStale:
      return "dropped_stale";
    case DropReason::kRolledBack:
      return "rolled_back";
    case DropReason::kSkipped:
      return "skipped";
    case DropReason::kPastDeadline:
      return "past_deadline";
  }
  return "unknown";
}

PromptQueue::PromptQueue(const Options& options, const DataState& state)
    : options_(options),
      next_(state.next),
      consumed_below_(state.consumed_below),
      consumed_above_(state.consumed_above.begin(), state.consumed_above.end()),
      attempts_(state.attempts) {
  // A checkpoint knows no leases: what was leased when it was made is leased again.
  for (GroupId group = consumed_below_; group < next_; group = After(group)) {
    if (!IsConsumed(group)) put_back_.insert(group);
  }
  for (const LeaseId& lease : state.accepted) Remember(lease);
}

GroupId PromptQueue::After(const GroupId& group) const {
  if (options_.prompts_per_pass > 0 && group.ordinal + 1 >= options_.prompts_per_pass) return {group.pass + 1, 0};
  return {group.pass, group.ordinal + 1};
}

bool PromptQueue::Ended() const {
  if (options_.max_groups == 0) return false;
  return next_.pass * options_.prompts_per_pass + next_.ordinal >= options_.max_groups;
}

std::optional<GroupId> PromptQueue::Head() const {
  if (!put_back_.empty()) return *put_back_.begin();
  if (Ended()) return std::nullopt;
  return next_;
}

LeaseId PromptQueue::Lease() {
  std::optional<GroupId> head = Head();
  SYNCOPATE_CHECK(head.has_value());
  if (put_back_.erase(*head) == 0) next_ = After(next_);
  return NextAttempt(*head);
}

LeaseId PromptQueue::NextAttempt(const GroupId& group) {
  SYNCOPATE_CHECK(group < next_ && !put_back_.contains(group) && !IsConsumed(group));
  // Attempts are never counted from 1 again, so that a late answer of an earlier attempt is recognised.
  return {group, ++attempts_[group]};
}

void PromptQueue::PutBack(const GroupId& group) {
  SYNCOPATE_CHECK(group < next_ && !IsConsumed(group));
  put_back_.insert(group);
}

void PromptQueue::Rest(const GroupId& group) {
  SYNCOPATE_CHECK(put_back_.erase(group) > 0);
  resting_.insert(group);
}

void PromptQueue::Wake(const GroupId& group) {
  if (resting_.erase(group) > 0) put_back_.insert(group);
}

void PromptQueue::Consume(const GroupId& group) {
  SYNCOPATE_CHECK(group < next_);
  put_back_.erase(group);
  resting_.erase(group);
  attempts_.erase(group);
  if (IsConsumed(group)) return;
  consumed_above_.insert(group);
  // Prompts are consumed nearly in order: a mark and the few above it stay small in memory and in checkpoints.
  while (!consumed_above_.empty() && *consumed_above_.begin() == consumed_below_) {
    consumed_above_.erase(consumed_above_.begin());
    consumed_below_ = After(consumed_below_);
  }
}

void PromptQueue::ConsumeAccepted(const LeaseId& lease) {
  if (!IsConsumed(lease.group)) Remember(lease);
  Consume(lease.group);
}

void PromptQueue::Remember(const LeaseId& lease) {
  if (!accepted_attempts_.emplace(lease.group, lease.attempt).second) return;
  remembered_.push_back(lease.group);
  // An acknowledgement that was lost is asked for again within seconds, so the newest are enough.
  if (remembered_.size() <= kRemembered) return;
  accepted_attempts_.erase(remembered_.front());
  remembered_.pop_front();
}

bool PromptQueue::WasAccepted(const LeaseId& lease) const {
  auto found = accepted_attempts_.find(lease.group);
  return found != accepted_attempts_.end() && found->second == lease.attempt;
}

bool PromptQueue::IsConsumed(const GroupId& group) const {
  return group < consumed_below_ || consumed_above_.contains(group);
}

int32_t PromptQueue::Attempts(const GroupId& group) const {
  auto found = attempts_.find(group);
  return found == attempts_.end() ? 0 : found->second;
}

void PromptQueue::SawAttempt(const LeaseId& lease) {
  if (IsConsumed(lease.group)) return;
  // The log contains answers alone, no leases: prompts between were leased and have no answer yet.
  for (; next_ <= lease.group; next_ = After(next_)) put_back_.insert(next_);
  int32_t& attempts = attempts_[lease.group];
  attempts = std::max(attempts, lease.attempt);
}

void PromptQueue::MarkAccepted(const GroupId& group) { put_back_.erase(group); }

DataState PromptQueue::State() const {
  DataState state{.next = next_,
                  .consumed_below = consumed_below_,
                  .consumed_above = {consumed_above_.begin(), consumed_above_.end()},
                  .attempts = attempts_};
  for (const GroupId& group : remembered_) state.accepted.push_back({group, accepted_attempts_.at(group)});
  return state;
}

}  // namespace syncopate::trainer
