#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "services/rpc/timer.h"

namespace syncopate::rpc {

// Finds out that a peer does not read: what a stream has handed to gRPC last is pending for too long. One timer at a time,
// which looks again when it fires, so that a write costs none of its own. Guarded by its owner's lock.
class StallWatch {
 public:
  struct Options {
    Mutex* mutex;  // the owner's
    absl::Duration stalled_after;
    // Both under the lock. Whether anything is pending; and then, if it is for that long, what to do about it.
    std::function<bool()> is_pending;
    std::function<void()> on_stalled;
  };
  explicit StallWatch(Options options) : options_(std::move(options)) {}

  // Something is handed to gRPC now. The timer holds `owner`, which this is a part of.
  void Begin(const std::shared_ptr<void>& owner) {
    pending_since_ = Clock::Real()->Now();
    if (!watching_) SetTimer(options_.stalled_after, owner);
  }
  void Cancel() { timer_.Cancel(); }

 private:
  void SetTimer(absl::Duration delay, const std::shared_ptr<void>& owner) {
    watching_ = true;
    timer_.Set(delay, [this, owner] { Look(owner); });
  }

  void Look(const std::shared_ptr<void>& owner) {
    MutexLock lock(options_.mutex);
    watching_ = false;
    if (!options_.is_pending()) return;
    const absl::Duration left = options_.stalled_after - (Clock::Real()->Now() - pending_since_);
    if (left > absl::ZeroDuration()) {
      SetTimer(left, owner);
    } else {
      options_.on_stalled();
    }
  }

  const Options options_;
  Timer timer_;
  absl::Time pending_since_;
  bool watching_ = false;
};

}  // namespace syncopate::rpc
