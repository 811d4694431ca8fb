#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace syncopate::daemon {

// Bounds the time of an orderly stop: calls `expired` once, on its own thread, unless this object is destroyed within
// `grace`. The daemon's `expired` ends the process.
class StopDeadline {
 public:
  StopDeadline(absl::Duration grace, std::function<void()> expired);
  ~StopDeadline();  // joins the thread; `expired` is not called any more
  StopDeadline(const StopDeadline&) = delete;
  StopDeadline& operator=(const StopDeadline&) = delete;

 private:
  Mutex mutex_;
  bool in_time_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncopate::daemon
