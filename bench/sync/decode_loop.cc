#include "bench/sync/decode_loop.h"

#include <algorithm>

#include "base/clock.h"
#include "base/status.h"

namespace syncopate::bench {

DecodeLoop::DecodeLoop(std::function<absl::Status()> step) : step_(std::move(step)), idle_since_(Clock::Real()->Now()) {
  // Without a step nothing decodes (--no-decode), but Hold() and Release() work as documented.
  if (step_ != nullptr) thread_ = std::thread([this] { Run(); });
}

DecodeLoop::~DecodeLoop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status DecodeLoop::Hold(absl::Duration deadline) {
  MutexLock lock(&mutex_);
  // Holds nest. From now on no step can start, so only the running step is waited for.
  ++holds_;
  // If the loop is between two steps, it is idle from now on, not from the end of the last step.
  if (holds_ == 1 && !running_) idle_since_ = Clock::Real()->Now();
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !running_; };
  if (mutex_.AwaitWithTimeout(Condition(&idle), deadline)) return absl::OkStatus();
  --holds_;
  return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE", "the decode step under way did not end in time");
}

absl::Duration DecodeLoop::Release() {
  MutexLock lock(&mutex_);
  --holds_;
  // The wait of a request: from the end of the last step, because an install would have to wait for that step anyway.
  return Clock::Real()->Now() - idle_since_;
}

absl::StatusOr<double> DecodeLoop::Between(const std::function<absl::Status()>& action, absl::Duration deadline) {
  SYNCOPATE_RETURN_IF_ERROR(Hold(deadline));
  absl::Status status = action();
  const double seconds = absl::ToDoubleSeconds(Release());
  if (!status.ok()) return status;
  return seconds;
}

// Steps and windows are both in order of time. A step that is only partly in a window counts for that part, so that
// short windows are not rounded to whole steps.
double DecodeLoop::StepsWithin(const std::vector<Window>& windows) const {
  MutexLock lock(&mutex_);
  double steps = 0;
  auto step = steps_.begin();
  for (const Window& window : windows) {
    while (step != steps_.end() && step->second <= window.first) ++step;
    for (auto inside = step; inside != steps_.end() && inside->first < window.second; ++inside) {
      // The part of the step in this window.
      const absl::Duration shared = std::min(inside->second, window.second) - std::max(inside->first, window.first);
      const absl::Duration whole = inside->second - inside->first;
      if (whole > absl::ZeroDuration()) steps += absl::FDivDuration(shared, whole);
    }
  }
  return steps;
}

absl::Duration DecodeLoop::LongestGap() const {
  MutexLock lock(&mutex_);
  absl::Duration longest;
  // From end to end: the wait of a sequence for its next token.
  for (size_t i = 1; i < steps_.size(); ++i) longest = std::max(longest, steps_[i].second - steps_[i - 1].second);
  return longest;
}

void DecodeLoop::Forget() {
  MutexLock lock(&mutex_);
  steps_.clear();
}

absl::Status DecodeLoop::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

void DecodeLoop::Run() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      auto may_run = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || holds_ == 0; };
      mutex_.Await(Condition(&may_run));
      if (stopping_) return;
      running_ = true;
    }
    const absl::Time begin = Clock::Real()->Now();
    absl::Status status = step_();
    const absl::Time end = Clock::Real()->Now();
    MutexLock lock(&mutex_);
    running_ = false;
    idle_since_ = end;
    if (!status.ok()) {
      status_ = std::move(status);
      return;
    }
    steps_.push_back({begin, end});
    // Bounded, because a benchmark may run for minutes at thousands of steps a second.
    if (steps_.size() > kKept) steps_.pop_front();
  }
}

}  // namespace syncopate::bench
