#include "base/daemon/stop_deadline.h"

#include <utility>

namespace syncopate::daemon {

StopDeadline::StopDeadline(absl::Duration grace, std::function<void()> expired)
    : thread_([this, grace, expired = std::move(expired)] {
        {
          MutexLock lock(&mutex_);
          if (mutex_.AwaitWithTimeout(Condition(&in_time_), grace)) return;
        }
        expired();
      }) {}

StopDeadline::~StopDeadline() {
  {
    MutexLock lock(&mutex_);
    in_time_ = true;
  }
  thread_.join();
}

}  // namespace syncopate::daemon
