#include "trainer/checkpoint/save_thread.h"

#include <utility>

namespace syncopate::trainer {
namespace {
constexpr absl::Duration kLookEvery = absl::Milliseconds(100);
}  // namespace

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

absl::Status SaveThread::Wait(const std::function<absl::Status()>& go_on) {
  auto is_idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return tasks_.empty() && !is_busy_; };
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(Condition(&is_idle), kLookEvery)) return absl::OkStatus();
    }
    SYNCOPATE_RETURN_IF_ERROR(go_on());
  }
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
