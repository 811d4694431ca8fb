#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace syncopate {

// The only source of time for decisions. Thread-safe. Injected everywhere, so that tests and the simulator own it.
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
