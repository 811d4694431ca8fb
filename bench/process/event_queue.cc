#include "bench/process/event_queue.h"

#include <utility>

#include "base/clock.h"

namespace syncopate::bench {

void EventQueue::Put(BenchEvent event) {
  MutexLock lock(&mutex_);
  events_.push_back(std::move(event));
}

std::optional<BenchEvent> EventQueue::Next(absl::Time deadline) {
  MutexLock lock(&mutex_);
  auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); };
  if (!mutex_.AwaitWithTimeout(Condition(&some), deadline - Clock::Real()->Now())) return std::nullopt;
  BenchEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

}  // namespace syncopate::bench
