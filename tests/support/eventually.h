#pragma once

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncopate::testing {

// Waits until `done` is true; false after `timeout`. It calls `done` again after each `interval` and lets other threads
// run between. Use it for states that send no notification, such as those of another process or of a counter; wait for
// the notification of any other state.
inline bool Eventually(absl::Duration timeout, const std::function<bool()>& done,
                       absl::Duration interval = absl::Milliseconds(10)) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!done()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(interval);
  }
  return true;
}

}  // namespace syncopate::testing
