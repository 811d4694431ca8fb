#pragma once

#include <string>

#include "base/status.h"
#include "trainer/checkpoint/checkpoint_store.h"

namespace syncopate::trainer {

// The other ranks of a trainer, as rank 0 sees them while all save: each was told by Policy::TakeSnapshot() or
// Policy::TakeWeights().
class RankSaves {
 public:
  virtual ~RankSaves() = default;
  // Waits until each of them has written its files into `folder`, of the folder of checkpoints or exports, or has said
  // that it cannot: what they have written. The first one's error, which names the rank; UNAVAILABLE (reason RANK_LOST)
  // if one is gone; DEADLINE_EXCEEDED (reason SAVE_LATE) if one says nothing. For any thread.
  virtual absl::StatusOr<CheckpointStore::Files> AwaitSaved(const std::string& folder) = 0;
  // OK, or why the ranks end. Does not block.
  virtual absl::Status lost() const = 0;
};

}  // namespace syncopate::trainer
