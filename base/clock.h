#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace syncopate {

// The source of time. Thread-safe. Code that makes decisions is given a clock, or the time itself, so that tests and
// the simulator control it; daemons and tools use Real().
class Clock {
 public:
  virtual ~Clock() = default;
  // Steady time: never jumps with the wall clock; only differences between two values have a meaning.
  virtual absl::Time Now() const = 0;
  // Wall time in seconds since 1970, for text that people read (logs, metrics, file names). Not for order or time-outs.
  virtual double UnixSeconds() const = 0;

  // The process's real clock; never destroyed.
  static const Clock* Real();
};

}  // namespace syncopate
