#include "trainer/checkpoint/save_thread.h"

#include <utility>

namespace syncopate::trainer {

SaveThread::~SaveThread() {
  {
    MutexLock lock(&mutex_);
    ends_ = true;
  }
  thread_.join();
}

void SaveThread::Post(std::function<void()> task) {
  MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void SaveThread::Wait() {
  MutexLock lock(&mutex_);
  auto is_idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return tasks_.empty() && !is_busy_; };
  mutex_.Await(Condition(&is_idle));
}

void SaveThread::Run() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mutex_);
      is_busy_ = false;
      auto is_due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ends_ || !tasks_.empty(); };
      mutex_.Await(Condition(&is_due));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      is_busy_ = true;
    }
    task();
  }
}

}  // namespace syncopate::trainer
