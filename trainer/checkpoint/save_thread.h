#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"

namespace syncopate::trainer {

// A thread that writes checkpoints while steps are made. Tasks are done one after the other, all of them. Thread-safe.
class SaveThread {
 public:
  SaveThread() : thread_([this] { Run(); }) {}
  // Destroy after the last task. A thread that is blocked by a disk cannot be ended: if Wait() said so, the process
  // exits.
  ~SaveThread();
  SaveThread(const SaveThread&) = delete;
  SaveThread& operator=(const SaveThread&) = delete;

  void Post(std::function<void()> task);
  // Waits until all posted tasks are done, or until `go_on`, which is called again and again, returns an error; returns
  // that error. Must not be called from a task.
  absl::Status Wait(const std::function<absl::Status()>& go_on);

 private:
  void Run();

  Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool is_busy_ ABSL_GUARDED_BY(mutex_) = false, ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace syncopate::trainer
