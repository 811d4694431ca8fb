#pragma once

#include <cstdint>
#include <vector>

#include "base/trajectory.h"

namespace syncopate::trainer {

// Exact counts of trained tokens by staleness: the trainer's step at use minus the step of the version that made the
// token. Steps, not versions: an accepted group may be older than the epoch.
struct StalenessTally {
  std::vector<int64_t> tokens = {};  // tokens[s]: tokens of staleness s
  int64_t groups = 0;
  int64_t mixed_groups = 0;      // with tokens of more than one version
  int64_t violating_groups = 0;  // with a token beyond the bound, or from the future: a defect, wherever it came from

  // Adds one group that is used at trainer step `step`; staleness below 0 counts as a violation and as 0.
  void Add(const TrajectoryGroup& group, int64_t step, int64_t bound);
  void Merge(const StalenessTally& other);

  int64_t total_tokens() const;
  double Mean() const;  // per token; 0 when empty
  int64_t Max() const;  // 0 when empty
  friend bool operator==(const StalenessTally&, const StalenessTally&) = default;
};

}  // namespace syncopate::trainer
