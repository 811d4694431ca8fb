#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <vector>

#include "absl/time/time.h"

namespace syncopate::trainer {

// How long a device takes for what is queued between marks: on a GPU by events of the current stream, without
// a wait, else by the clock. Not thread-safe.
class PhaseClock {
 public:
  explicit PhaseClock(at::Device device) : device_(device) {}
  void Mark();
  // Between the marks `phase` and `phase` + 1, once the device has passed both.
  double Seconds(size_t phase) const;

 private:
  const at::Device device_;
  std::vector<c10::Event> events_;
  std::vector<absl::Time> times_;
};

}  // namespace syncopate::trainer
