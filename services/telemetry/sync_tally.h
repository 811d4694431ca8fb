#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "base/latency_histogram.h"
#include "services/telemetry/sync_outcome.h"
#include "syncopate/v1/synchronizer.pb.h"

namespace syncopate::telemetry {

// Weight syncs, counted over all receivers; rehearsals are none. Not thread-safe.
class SyncTally {
 public:
  // Of those that brought a version into use.
  struct Times {
    LatencyHistogram histogram = {};
    absl::Duration longest = absl::ZeroDuration();

    void Add(double seconds);
    void Merge(const Times& other);
    // As of the histogram, but never longer than the longest.
    absl::Duration Quantile(double quantile) const;
  };

  void Add(const v1::SyncRecord& sync);
  void Merge(const SyncTally& other);

  int64_t count() const;
  int64_t Count(SyncOutcome outcome) const;
  int64_t bytes() const;
  const Times& total() const { return total_; }  // publish to commit
  const Times& pause() const { return pause_; }  // of the decode loop

  v1::SyncTally ToProto() const;
  // Counts below 0 are taken for 0.
  static SyncTally FromProto(const v1::SyncTally& message);

 private:
  std::map<SyncOutcome, int64_t> outcomes_;
  std::map<std::string, int64_t> bytes_by_kind_;
  Times total_, pause_;
};

}  // namespace syncopate::telemetry
