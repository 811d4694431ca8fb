#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace syncopate::daemon {

// Sees to it that an orderly stop ends: calls `expired` once, on a thread of its own, unless this object is gone
// within `grace`. The daemon's `expired` ends the process.
class StopDeadline {
 public:
  StopDeadline(absl::Duration grace, std::function<void()> expired);
  ~StopDeadline();  // joins; `expired` is not called any more
  StopDeadline(const StopDeadline&) = delete;
  StopDeadline& operator=(const StopDeadline&) = delete;

 private:
  Mutex mutex_;
  bool in_time_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncopate::daemon
