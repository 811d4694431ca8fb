#pragma once

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncopate::testing {

// Waits until `done` is true; false after `timeout`. For states that nothing announces, such as those of another process
// or of a counter: it asks again after `interval` and lets other threads run between. A state that is announced is
// awaited by its notification.
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
