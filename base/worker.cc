#include "base/worker.h"

#include <utility>

namespace syncopate {

Worker::Worker(size_t capacity) : capacity_(capacity), thread_([this] { Loop(); }) {}

Worker::~Worker() { Stop(); }

bool Worker::Post(std::function<void()> task) {
  MutexLock lock(&mutex_);
  if (stopping_ || tasks_.size() >= capacity_) return false;
  tasks_.push_back(std::move(task));
  return true;
}

void Worker::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void Worker::Loop() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mutex_);
      auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !tasks_.empty(); };
      mutex_.Await(Condition(&due));
      if (tasks_.empty()) return;  // ends only when all tasks that were posted before Stop() have run
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace syncopate
