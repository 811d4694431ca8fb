#pragma once

#include <map>
#include <optional>
#include <set>

#include "base/policy_version.h"
#include "base/status.h"
#include "trainer/checkpoint/checkpoint_store.h"

namespace syncopate::trainer {

// Which checkpoint of a run is the best: the one whose evaluation has the highest mean reward, the newer one of two
// equal ones. It is for export; a run does not resume from it:
//
//   <root>/best.json    {"checkpoint": "e1-s50", "reward_mean": 1, "exact": 1}; "exact" only where it is known
//   <root>/e1-s50/      the best checkpoint, until pruning would delete it
//   <root>/best/        the best checkpoint after that; restoring, keeping and pruning do not look here
//
// Not thread-safe. Calls may block for the disk.
class BestCheckpoint {
 public:
  static constexpr char kFile[] = "best.json";

  struct Score {
    PolicyVersion version;
    double reward_mean = 0;
    std::optional<double> exact = std::nullopt;  // share of answers that are wholly right, where right ones are known
  };

  // `store` must outlive it.
  explicit BestCheckpoint(CheckpointStore* store) : store_(store) {}

  // Reads the file of an earlier incarnation. A file that cannot be read is logged, and the next best one replaces it.
  void Load();

  // The evaluation of a version has ended, or a version was saved: in either order, both make it a candidate. An error
  // is the disk's; the best one stays what it was.
  absl::Status AddScore(const Score& score);
  absl::Status AddSaved(const PolicyVersion& version);

  const std::optional<Score>& best() const { return best_; }

 private:
  absl::StatusOr<Score> ReadScore() const;
  absl::Status Consider(const PolicyVersion& version);

  CheckpointStore* const store_;
  std::optional<Score> best_;
  // Recent evaluations, and versions that were recently saved: the best checkpoint needs both.
  std::map<PolicyVersion, Score> scores_;
  std::set<PolicyVersion> saved_;
};

}  // namespace syncopate::trainer
