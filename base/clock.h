#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace syncopate {

// Where time comes from. Thread-safe. What decides is given a clock, or the time itself, so that tests and the
// simulator own it; the shells of daemons and tools take Real().
class Clock {
 public:
  virtual ~Clock() = default;
  // Steady time: never jumps with the wall clock; its zero means nothing, only differences do.
  virtual absl::Time Now() const = 0;
  // Wall time in seconds since 1970, for what people read (logs, metrics, file names). Never for order or time-outs.
  virtual double UnixSeconds() const = 0;

  // The process's real clock; lives for ever.
  static const Clock* Real();
};

}  // namespace syncopate
