#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace syncopate {

// One thread for work that its caller must not wait for, such as blocking work of a gRPC callback. Tasks run one after
// the other. Thread-safe.
class Worker {
 public:
  explicit Worker(size_t capacity = 1024);
  ~Worker();  // Stop
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // False if `capacity` tasks wait already or the worker has stopped; then `task` will not run.
  [[nodiscard]] bool Post(std::function<void()> task);
  // Runs the tasks that were posted, then joins the thread. Idempotent; must not be called from a task.
  void Stop();

 private:
  void Loop();

  const size_t capacity_;
  Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;  // makes concurrent Stops join once
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace syncopate
