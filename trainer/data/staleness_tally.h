#pragma once

#include <cstdint>
#include <vector>

#include "base/trajectory.h"

namespace syncopate::trainer {

// Exact counts of trained tokens by staleness: the trainer's step at use minus the step of the version that made the
// token. Steps, not versions: an accepted group may be older than the epoch.
struct StalenessTally {
  std::vector<int64_t> tokens = {};  // tokens[s]: tokens of staleness s
  int64_t masked_tokens = 0;         // of trained groups, beyond the bound: they have no loss and are not in `tokens`
  int64_t groups = 0;
  int64_t mixed_groups = 0;  // with tokens of more than one version
  // With a trained token beyond the bound, or one from the future: a defect, wherever it came from.
  int64_t violating_groups = 0;

  // Adds one group that is used at trainer step `step`; staleness below 0 counts as a violation and as 0. Tokens beyond
  // the bound are masked ones if the group `may_be_older`, and otherwise a violation.
  void Add(const TrajectoryGroup& group, int64_t step, int64_t bound, bool may_be_older = false);
  void Merge(const StalenessTally& other);

  int64_t total_tokens() const;  // trained ones
  double Mean() const;           // per trained token; 0 when empty
  int64_t Max() const;           // 0 when empty
  friend bool operator==(const StalenessTally&, const StalenessTally&) = default;
};

}  // namespace syncopate::trainer
