#pragma once

#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "base/latency_histogram.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// Weight syncs, counted over all receivers; rehearsals do not count. Not thread-safe.
class SyncTally {
 public:
  // Durations of syncs that brought a version into use.
  struct Times {
    LatencyHistogram histogram = {};
    absl::Duration longest = absl::ZeroDuration();

    void Add(double seconds);
    void Merge(const Times& other);
    // The histogram's quantile, but at most `longest`.
    absl::Duration Quantile(double quantile) const;
  };
  // All counts.
  struct Sums {
    std::map<SyncOutcome, int64_t> outcomes = {};
    PayloadBytes bytes = {};
    Times total = {};  // publish to commit
    Times pause = {};  // pauses of the decode loop
  };

  SyncTally() = default;
  explicit SyncTally(Sums sums) : sums_(std::move(sums)) {}

  void Add(const SyncRecord& sync);
  void Merge(const SyncTally& other);

  int64_t count() const;
  int64_t Count(SyncOutcome outcome) const;
  const Sums& sums() const { return sums_; }

 private:
  Sums sums_;
};

}  // namespace syncopate::synchronizer
