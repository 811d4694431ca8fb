#pragma once

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace syncopate {

// The longest time that a test waits for an event that must happen. No test sleeps for this time.
inline constexpr absl::Duration kTestDeadline = absl::Seconds(20);

// Values that callbacks leave for a test. Thread-safe.
template <typename T>
class Mailbox {
 public:
  void Put(T value) {
    MutexLock lock(&mutex_);
    values_.push_back(std::move(value));
  }
  // True as soon as there are at least `count` values; false after `deadline`.
  bool WaitFor(size_t count, absl::Duration deadline = kTestDeadline) {
    MutexLock lock(&mutex_);
    auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return values_.size() >= count; };
    return mutex_.AwaitWithTimeout(Condition(&enough), deadline);
  }
  std::vector<T> All() {
    MutexLock lock(&mutex_);
    return values_;
  }
  size_t size() {
    MutexLock lock(&mutex_);
    return values_.size();
  }

 private:
  Mutex mutex_;
  std::vector<T> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate
