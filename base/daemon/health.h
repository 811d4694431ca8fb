#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace syncopate::daemon {

// The health of one daemon, for probes (GET /livez and /readyz, gRPC health). The daemon's event loop reports that it
// moves, its main thread whether the daemon can do its work. Thread-safe; nothing blocks.
//
// Live: the event loop has moved within `stalled_after`, however long the work takes that it waits for. A daemon that
// starts or stops is live: both end by themselves. Ready: the daemon can do its work now. Not being ready is no fault.
class Health {
 public:
  static constexpr absl::Duration kStalledAfter = absl::Seconds(10);

  explicit Health(const Clock* clock = Clock::Real(), absl::Duration stalled_after = kStalledAfter)
      : clock_(clock), stalled_after_(stalled_after) {}

  // The event loop has finished a turn; call it several times per `stalled_after`.
  void Moved();

  // OK if the daemon can do its work, else why not, for people. Without effect after BeginStop.
  void SetReady(const absl::Status& why);
  // From now on the daemon is not ready, and live until it ends. Idempotent: the first `why` counts.
  void BeginStop(const std::string& why);

  absl::Status Live() const;   // UNAVAILABLE reason STALLED
  absl::Status Ready() const;  // UNAVAILABLE reason STARTING or STOPPING, or what SetReady was given

 private:
  const Clock* const clock_;
  const absl::Duration stalled_after_;

  mutable Mutex mutex_;
  absl::Time moved_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // infinite: the loop has not begun
  absl::Status ready_ ABSL_GUARDED_BY(mutex_);                         // valid once `judged_`
  bool judged_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string why_stopping_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::daemon
