#include "trainer/data/staleness_tally.h"

#include <algorithm>
#include <numeric>

#include "trainer/data/submission_check.h"

namespace syncopate::trainer {

void StalenessTally::Add(const TrajectoryGroup& group, int64_t step, int64_t bound, bool may_be_older) {
  bool violating = false;
  for (const Trajectory& sample : group.samples) {
    for (const VersionSpan& span : sample.spans) {
      const int64_t staleness = step - span.version.step;
      const bool beyond = staleness > bound;
      if (beyond && may_be_older) {
        masked_tokens += span.end - span.begin;
        continue;
      }
      violating = violating || beyond || staleness < 0;
      const size_t bin = static_cast<size_t>(std::max<int64_t>(staleness, 0));
      if (bin >= tokens.size()) tokens.resize(bin + 1);
      tokens[bin] += span.end - span.begin;
    }
  }
  ++groups;
  mixed_groups += OldestVersion(group) != NewestVersion(group);
  violating_groups += violating;
}

void StalenessTally::Merge(const StalenessTally& other) {
  if (other.tokens.size() > tokens.size()) tokens.resize(other.tokens.size());
  for (size_t i = 0; i < other.tokens.size(); ++i) tokens[i] += other.tokens[i];
  masked_tokens += other.masked_tokens;
  groups += other.groups;
  mixed_groups += other.mixed_groups;
  violating_groups += other.violating_groups;
}

int64_t StalenessTally::total_tokens() const { return std::accumulate(tokens.begin(), tokens.end(), int64_t{0}); }

double StalenessTally::Mean() const {
  double sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) sum += static_cast<double>(i) * static_cast<double>(tokens[i]);
  return sum == 0 ? 0 : sum / static_cast<double>(total_tokens());
}

int64_t StalenessTally::Max() const {
  for (size_t i = tokens.size(); i-- > 0;) {
    if (tokens[i] > 0) return static_cast<int64_t>(i);
  }
  return 0;
}

}  // namespace syncopate::trainer
