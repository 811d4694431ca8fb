#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/data/prompt_queue.h"
#include "trainer/data/records.h"

namespace syncopate::trainer {

// The data position that a trainer starts from: empty for a new run, else rebuilt from a checkpoint and the log.
struct RestoredData {
  struct Accepted {
    AcceptedRecord record;
    uint64_t sequence = 0;  // number of the group's record in the log
  };
  struct Replay {
    int64_t step = 0;  // the step that the take produces
    std::vector<SharedGroup> groups = {};
    // True for a supervised step: it trains the data's answers to `prompts`, and `groups` is empty.
    bool supervised = false;
    std::vector<LeaseId> prompts = {};
  };

  PromptQueue queue;
  std::vector<Accepted> accepted = {};  // durable groups that no take contains, ordered by prompt
  // takes after the checkpoint, in order; the trainer repeats them before it makes new batches
  std::deque<Replay> replays = {};
  std::vector<DropRecord> drops = {};  // groups that the restore dropped; these records must be durable before any step
  uint64_t oldest_sequence = 0;        // lowest sequence of the records behind `accepted` and `replays`; 0: none
  TrainingSums sums = {};              // the checkpoint's and those of later log records, without `replays` and `drops`
};

// Rebuilds the trainer's data position at step `step` from the checkpoint's DataState and the log's remaining records.
// Feed the records in order, then call Finish once. Takes at or below `step` are part of the checkpoint; later takes
// are replayed. Accepted groups that contain tokens of versions beyond `step` are dropped as rolled back and their
// prompts are leased again; a replayed take keeps such groups, because the replayed steps make those versions again.
class DataRestore {
 public:
  DataRestore(const PromptQueue::Options& options, const DataState& state, int64_t step);

  // Errors: DATA_LOSS (reason LOG_INCONSISTENT) if a take names a group whose record is missing, if takes do not follow
  // each other, or if two different takes name one step: the log and the checkpoint do not belong together.
  absl::Status Add(LogRecord record, uint64_t sequence);
  RestoredData Finish();

 private:
  void Count(const LogRecord& record, uint64_t sequence);
  absl::Status AddAccepted(AcceptedRecord record, uint64_t sequence);
  absl::Status AddTake(const TakeRecord& take, uint64_t sequence);
  absl::Status AddReplay(const TakeRecord& take, uint64_t sequence);
  absl::Status AddDrop(const DropRecord& drop);

  const int64_t step_;
  PromptQueue queue_;
  std::map<GroupId, RestoredData::Accepted> accepted_;
  std::deque<RestoredData::Replay> replays_;
  uint64_t oldest_replayed_ = 0;
  TrainingSums sums_;
};

}  // namespace syncopate::trainer
