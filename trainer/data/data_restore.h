#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/data/prompt_queue.h"
#include "trainer/data/records.h"

namespace syncopate::trainer {

// What a trainer starts from: nothing done, or what a checkpoint and the log say.
struct RestoredData {
  struct Accepted {
    AcceptedRecord record;
    uint64_t sequence = 0;  // of its record in the log
  };
  struct Replay {
    int64_t step = 0;  // that it produces
    std::vector<SharedGroup> groups = {};
    // A supervised step: these prompts, whose answers the data have; `groups` is empty.
    bool supervised = false;
    std::vector<LeaseId> prompts = {};
  };

  PromptQueue queue;
  std::vector<Accepted> accepted = {};  // durable and not taken, by prompt
  std::deque<Replay> replays = {};      // takes after the checkpoint, in order: they are repeated before anything else
  std::vector<DropRecord> drops = {};   // what restoring dropped; durable in the log before any step
  uint64_t oldest_sequence = 0;         // of the records behind `accepted` and `replays`; 0: none
  TrainingSums sums = {};               // all that the log holds counted, but for `replays` and `drops`
};

// Rebuilds the trainer's data position at step `step` from the checkpoint's DataState and the whole log that is left.
// Feed the records in order, then Finish once. Takes at or below `step` are part of the checkpoint; later ones are
// replayed. Accepted groups that hold tokens of versions beyond `step` are dropped as rolled back and their prompts
// leased again; a take holds such groups only because the replayed steps make those versions anew.
class DataRestore {
 public:
  DataRestore(const PromptQueue::Options& options, const DataState& state, int64_t step);

  // DATA_LOSS (reason LOG_INCONSISTENT) if a take names a group whose record is missing, or takes do not follow each
  // other: the log and the checkpoint do not belong together.
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
