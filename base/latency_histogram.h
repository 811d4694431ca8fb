#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace syncopate {

// How long many things took, from 1 us to 1 h, each within 3 % of what is counted. Not thread-safe.
class LatencyHistogram {
 public:
  void Add(absl::Duration latency, int64_t times = 1);
  void Merge(const LatencyHistogram& other);

  int64_t count() const { return count_; }
  // What was counted, by the longest time of each class of times, ascending: Add of it gives an equal histogram.
  std::vector<std::pair<absl::Duration, int64_t>> Classes() const;
  // The shortest time that at least the share `quantile` (0 to 1) did not exceed; zero if nothing was counted.
  absl::Duration Quantile(double quantile) const;

 private:
  static constexpr int kStepBits = 5;  // steps of a doubling: 2^5
  static constexpr int kDoublings = 32;

  static int SlotOf(int64_t micros);
  static int64_t EndOf(int slot);  // the largest number of microseconds that it takes

  std::array<int64_t, (kDoublings + 1) << kStepBits> slots_{};
  int64_t count_ = 0;
};

}  // namespace syncopate
