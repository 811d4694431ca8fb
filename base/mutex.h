#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#ifndef SYNCOPATE_TSAN
#include "absl/synchronization/mutex.h"
#else
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#endif

// Mutex, MutexLock and Condition are absl's. Debian's absl is not instrumented for ThreadSanitizer, which would report
// correct programs, so the tsan preset has the same small interface over std::mutex. Use nothing beyond it:
//   MutexLock lock(&mutex_);
//   mutex_.Await(Condition(&functor));                  functor: a bool() lambda that outlives the call
//   bool true_now = mutex_.AwaitWithTimeout(Condition(&functor), absl::Seconds(5));
namespace syncopate {

#ifndef SYNCOPATE_TSAN

using Mutex = absl::Mutex;
using MutexLock = absl::MutexLock;
using Condition = absl::Condition;

#else

class Condition {
 public:
  template <typename Functor>
  explicit Condition(const Functor* functor) : eval_([functor] { return Call(*functor); }) {}
  explicit Condition(const bool* flag) : eval_([flag] { return *flag; }) {}
  bool Eval() const { return eval_(); }

 private:
  // Await calls the functor with the mutex held, which clang's analysis cannot know here.
  template <typename Functor>
  static bool Call(const Functor& functor) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return functor();
  }

  std::function<bool()> eval_;
};

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    changed_.notify_all();
    mutex_.unlock();
  }
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}
  void Await(const Condition& condition) {
    changed_.notify_all();
    std::unique_lock<std::mutex> held(mutex_, std::adopt_lock);
    changed_.wait(held, [&condition] { return condition.Eval(); });
    held.release();
  }
  bool AwaitWithTimeout(const Condition& condition, absl::Duration timeout) {
    changed_.notify_all();
    std::unique_lock<std::mutex> held(mutex_, std::adopt_lock);
    bool met = changed_.wait_for(held, absl::ToChronoNanoseconds(timeout), [&condition] { return condition.Eval(); });
    held.release();
    return met;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* mutex_;
};

#endif

}  // namespace syncopate
