#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace syncopate::trainer {

// A thread that writes checkpoints while steps are made. Tasks are done one after the other, all of them. Thread-safe.
class SaveThread {
 public:
  SaveThread() : thread_([this] { Run(); }) {}
  ~SaveThread();  // after the last task
  SaveThread(const SaveThread&) = delete;
  SaveThread& operator=(const SaveThread&) = delete;

  void Post(std::function<void()> task);
  // Until all that was posted is done. Blocks for the disk, as long as that takes; not from a task.
  void Wait();

 private:
  void Run();

  Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool is_busy_ ABSL_GUARDED_BY(mutex_) = false, ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace syncopate::trainer
