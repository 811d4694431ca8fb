#include "trainer/data/data_restore.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/data/submission_check.h"

// `DataRestore` reads the log from the oldest record that the checkpoint may need, so many records are older than the
// checkpoint. A record that the queue already knows is skipped; every other record is applied. Each step after the
// checkpoint is repeated with the groups of its logged take, so a resumed run trains the same batches.
namespace syncopate::trainer {
namespace {

absl::Status Inconsistent(const std::string& text) {
  return Error(absl::StatusCode::kDataLoss, "LOG_INCONSISTENT",
               absl::StrCat(text, "; the log and the checkpoint do not belong together: restore both from one copy"));
}

// The value 0 stands for "no sequence".
uint64_t EarlierSequence(uint64_t a, uint64_t b) { return a == 0 ? b : std::min(a, b); }

bool IsSameTake(const RestoredData::Replay& replay, const TakeRecord& take) {
  if (replay.supervised != take.supervised) return false;
  if (replay.supervised) return replay.prompts == take.groups;
  return std::equal(replay.groups.begin(), replay.groups.end(), take.groups.begin(), take.groups.end(),
                    [](const SharedGroup& group, const LeaseId& lease) { return group->lease == lease; });
}

}  // namespace

DataRestore::DataRestore(const PromptQueue::Options& options, const DataState& state, int64_t step)
    : step_(step), queue_(options, state), sums_(state.sums) {}

// Accepted and drop records are counted here. Takes are not: the checkpoint's sums include its own takes, and later
// takes are counted when they are replayed.
void DataRestore::Count(const LogRecord& record, uint64_t sequence) {
  // `counted_to` is the last sequence that the checkpoint's sums include; counting an older record again would double
  // it.
  if (sequence <= sums_.counted_to || std::holds_alternative<TakeRecord>(record)) return;
  sums_.counted_to = sequence;
  if (std::holds_alternative<AcceptedRecord>(record)) ++sums_.accepted;
  const auto* drop = std::get_if<DropRecord>(&record);
  if (drop == nullptr) return;
  if (drop->reason == DropReason::kStale) ++sums_.dropped_stale;
  if (drop->reason == DropReason::kRolledBack) ++sums_.rolled_back;
  if (drop->reason == DropReason::kSkipped) ++sums_.skipped;
  if (drop->reason == DropReason::kFailed) ++sums_.failed;
  if (drop->reason == DropReason::kPastDeadline) ++sums_.past_deadline;
  if (drop->reason != DropReason::kFiltered) return;
  ++sums_.accepted;  // a filtered group was acknowledged, and this drop is its only record
  ++sums_.filtered;
}

absl::Status DataRestore::Add(LogRecord record, uint64_t sequence) {
  Count(record, sequence);
  if (auto* accepted = std::get_if<AcceptedRecord>(&record)) return AddAccepted(std::move(*accepted), sequence);
  if (auto* take = std::get_if<TakeRecord>(&record)) return AddTake(*take, sequence);
  return AddDrop(std::get<DropRecord>(record));
}

absl::Status DataRestore::AddAccepted(AcceptedRecord record, uint64_t sequence) {
  const LeaseId lease = record.group->lease;
  if (queue_.IsConsumed(lease.group)) return absl::OkStatus();
  // The next attempt must get a number above every attempt in the log, so that an answer to an old lease cannot match
  // it.
  queue_.SawAttempt(lease);
  queue_.MarkAccepted(lease.group);
  accepted_[lease.group] = {std::move(record), sequence};
  return absl::OkStatus();
}

absl::Status DataRestore::AddTake(const TakeRecord& take, uint64_t sequence) {
  const int64_t step = take.produces.step;
  // The checkpoint's weights already contain this step, so its groups are consumed and not replayed.
  if (step <= step_) {
    for (const LeaseId& lease : take.groups) {
      queue_.SawAttempt(lease);
      queue_.ConsumeAccepted(lease);
      accepted_.erase(lease.group);
    }
    return absl::OkStatus();
  }
  const int64_t expected = step_ + 1 + static_cast<int64_t>(replays_.size());
  if (step < expected) {  // the record was written twice: the first write was not confirmed in time
    if (IsSameTake(replays_[step - step_ - 1], take)) return absl::OkStatus();
    return Inconsistent(absl::StrCat("the log contains two different takes for step ", step));
  }
  if (step > expected) {
    return Inconsistent(absl::StrCat("the log goes on with step ", step, " where step ", expected, " is due"));
  }
  return AddReplay(take, sequence);
}

absl::Status DataRestore::AddReplay(const TakeRecord& take, uint64_t sequence) {
  const int64_t step = take.produces.step;
  RestoredData::Replay replay{.step = step, .supervised = take.supervised};
  if (take.supervised) {
    for (const LeaseId& lease : take.groups) {
      queue_.SawAttempt(lease);
      queue_.MarkAccepted(lease.group);
    }
    oldest_replayed_ = EarlierSequence(oldest_replayed_, sequence);
    replay.prompts = take.groups;
    replays_.push_back(std::move(replay));
    return absl::OkStatus();
  }
  for (const LeaseId& lease : take.groups) {
    auto found = accepted_.find(lease.group);
    if (found == accepted_.end() || found->second.record.group->lease != lease) {
      return Inconsistent(absl::StrCat("step ", step, " takes group ", lease.group.ToString(), " attempt ",
                                       lease.attempt, ", which the log does not contain"));
    }
    oldest_replayed_ = EarlierSequence(oldest_replayed_, found->second.sequence);
    replay.groups.push_back(std::move(found->second.record.group));
    accepted_.erase(found);
  }
  replays_.push_back(std::move(replay));
  return absl::OkStatus();
}

absl::Status DataRestore::AddDrop(const DropRecord& drop) {
  const GroupId& group = drop.lease.group;
  if (queue_.IsConsumed(group)) return absl::OkStatus();
  queue_.SawAttempt(drop.lease);
  if (!LeasedAgain(drop.reason)) {
    accepted_.erase(group);
    if (drop.reason == DropReason::kFiltered) {
      queue_.ConsumeAccepted(drop.lease);
    } else {
      queue_.Consume(group);
    }
    return absl::OkStatus();
  }
  auto found = accepted_.find(group);
  if (found != accepted_.end() && found->second.record.group->lease == drop.lease) {
    accepted_.erase(found);
    queue_.PutBack(group);
  }
  return absl::OkStatus();
}

RestoredData DataRestore::Finish() {
  std::vector<RestoredData::Accepted> kept;
  std::vector<DropRecord> drops;
  uint64_t oldest = oldest_replayed_;
  for (auto& [id, accepted] : accepted_) {
    // The group contains tokens of a version that this run lost. The run will publish a different version with the same
    // number, so the tokens cannot be trained.
    if (NewestVersion(*accepted.record.group).step > step_) {
      const LeaseId lease = accepted.record.group->lease;
      drops.push_back({lease, DropReason::kRolledBack, std::move(accepted.record.group)});
      queue_.PutBack(id);
      continue;
    }
    // The log may be truncated only before the oldest record that is still needed.
    oldest = EarlierSequence(oldest, accepted.sequence);
    kept.push_back(std::move(accepted));
  }
  return {.queue = std::move(queue_),
          .accepted = std::move(kept),
          .replays = std::move(replays_),
          .drops = std::move(drops),
          .oldest_sequence = oldest,
          .sums = std::move(sums_)};
}

}  // namespace syncopate::trainer
