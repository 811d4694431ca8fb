#include "synchronizer/loop/sync_tally.h"

#include <algorithm>

namespace syncopate::synchronizer {

void SyncTally::Times::Add(double seconds) {
  const absl::Duration time = absl::Seconds(std::max(0.0, seconds));
  histogram.Add(time);
  longest = std::max(longest, time);
}

void SyncTally::Times::Merge(const Times& other) {
  histogram.Merge(other.histogram);
  longest = std::max(longest, other.longest);
}

absl::Duration SyncTally::Times::Quantile(double quantile) const {
  return std::min(histogram.Quantile(quantile), longest);
}

void SyncTally::Add(const SyncRecord& sync) {
  const SyncOutcome outcome = sync.outcome;
  if (outcome == SyncOutcome::kRehearsed || outcome == SyncOutcome::kHeld) return;
  ++sums_.outcomes[outcome];
  sums_.bytes += sync.bytes_by_kind;
  // A failed sync took the time of a deadline, not that of a sync.
  if (!sync.ok()) return;
  sums_.total.Add(sync.seconds.total);
  sums_.pause.Add(sync.pause_seconds);
}

void SyncTally::Merge(const SyncTally& other) {
  for (const auto& [outcome, count] : other.sums_.outcomes) sums_.outcomes[outcome] += count;
  sums_.bytes += other.sums_.bytes;
  sums_.total.Merge(other.sums_.total);
  sums_.pause.Merge(other.sums_.pause);
}

int64_t SyncTally::count() const {
  int64_t all = 0;
  for (const auto& [outcome, count] : sums_.outcomes) all += count;
  return all;
}

int64_t SyncTally::Count(SyncOutcome outcome) const {
  const auto found = sums_.outcomes.find(outcome);
  return found == sums_.outcomes.end() ? 0 : found->second;
}

}  // namespace syncopate::synchronizer
