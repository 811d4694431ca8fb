#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "base/clock.h"

namespace syncopate::testing {

// A clock that stands still until a test moves it, in whole microseconds. Thread-safe, so that a test can move it while
// the threads of what it tests read it.
class HandClock final : public Clock {
 public:
  explicit HandClock(absl::Time start = absl::UnixEpoch()) : micros_(absl::ToUnixMicros(start)) {}

  absl::Time Now() const override { return absl::FromUnixMicros(micros_); }
  double UnixSeconds() const override { return 1e-6 * static_cast<double>(micros_); }
  void Advance(absl::Duration by) { micros_ += absl::ToInt64Microseconds(by); }
  // Moves it to `time`, which may lie behind it.
  void Set(absl::Time time) { micros_ = absl::ToUnixMicros(time); }

 private:
  std::atomic<int64_t> micros_;
};

}  // namespace syncopate::testing
