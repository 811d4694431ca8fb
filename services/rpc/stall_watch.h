#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "services/rpc/timer.h"

namespace syncopate::rpc {

// Detects that a peer does not read: the message that a stream handed to gRPC last is pending for too long. Uses one
// timer at a time, which checks again when it fires, so that a write costs no timer of its own. Guarded by its owner's
// lock.
class StallWatch {
 public:
  struct Options {
    Mutex* mutex;  // the owner's
    absl::Duration stalled_after;
    // Both are called under the lock: whether anything is pending, and what to do if it has been pending for that long.
    std::function<bool()> is_pending;
    std::function<void()> on_stalled;
  };
  explicit StallWatch(Options options) : options_(std::move(options)) {}

  // A message is handed to gRPC now. The timer keeps `owner` alive, of which this object is a member.
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
