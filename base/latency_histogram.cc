#include "base/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace syncopate {

// Each number below 2^kStepBits has its own slot; from there on each doubling has 2^kStepBits slots of equal width.
int LatencyHistogram::GetSlot(int64_t micros) {
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(micros)));
  if (bits <= kStepBits) return static_cast<int>(micros);
  const int doubling = std::min(bits - kStepBits, kDoublings);
  const int64_t step = std::min((micros >> (doubling - 1)) - (1 << kStepBits), int64_t{(1 << kStepBits) - 1});
  return (doubling << kStepBits) + static_cast<int>(step);
}

int64_t LatencyHistogram::GetEnd(int slot) {
  const int doubling = slot >> kStepBits;
  if (doubling == 0) return slot;
  const int64_t step = slot & ((1 << kStepBits) - 1);
  return (((1 << kStepBits) + step + 1) << (doubling - 1)) - 1;
}

void LatencyHistogram::Add(absl::Duration latency, int64_t times) {
  slots_[GetSlot(std::max<int64_t>(0, absl::ToInt64Microseconds(latency)))] += times;
  count_ += times;
}

std::vector<std::pair<absl::Duration, int64_t>> LatencyHistogram::Classes() const {
  std::vector<std::pair<absl::Duration, int64_t>> classes;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i] > 0) classes.emplace_back(absl::Microseconds(GetEnd(static_cast<int>(i))), slots_[i]);
  }
  return classes;
}

void LatencyHistogram::Merge(const LatencyHistogram& other) {
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i] += other.slots_[i];
  count_ += other.count_;
}

absl::Duration LatencyHistogram::Quantile(double quantile) const {
  if (count_ == 0) return absl::ZeroDuration();
  const auto wanted = std::max<int64_t>(1, std::llround(std::ceil(quantile * static_cast<double>(count_))));
  int64_t seen = 0;
  size_t slot = 0;
  for (; slot + 1 < slots_.size(); ++slot) {
    seen += slots_[slot];
    if (seen >= wanted) break;
  }
  return absl::Microseconds(GetEnd(static_cast<int>(slot)));
}

}  // namespace syncopate
