#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace syncopate {

// A histogram of durations from 1 us to 1 h, each counted with an error of at most 3 %. Not thread-safe.
class LatencyHistogram {
 public:
  void Add(absl::Duration latency, int64_t times = 1);
  void Merge(const LatencyHistogram& other);

  int64_t count() const { return count_; }
  // Each class that is not empty: its longest duration and its count, ascending. Add() of all of them to an empty
  // histogram gives an equal one.
  std::vector<std::pair<absl::Duration, int64_t>> Classes() const;
  // The shortest duration that at least the share `quantile` (0 to 1) of all counted did not exceed; zero if nothing
  // was counted.
  absl::Duration Quantile(double quantile) const;

 private:
  static constexpr int kStepBits = 5;  // each doubling has 2^5 slots
  static constexpr int kDoublings = 32;

  static int GetSlot(int64_t micros);
  static int64_t GetEnd(int slot);  // the largest number of microseconds that falls into the slot

  std::array<int64_t, (kDoublings + 1) << kStepBits> slots_{};
  int64_t count_ = 0;
};

}  // namespace syncopate
