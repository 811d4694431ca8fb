#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace syncopate::daemon {

// How one daemon is, for whoever probes it (GET /livez and /readyz, gRPC health). The daemon's event loop says that it
// moves, its main thread whether it can do its work. Thread-safe; nothing blocks.
//
// Live: the event loop has moved within `stalled_after`, whatever the work that it waits for. A daemon that starts or
// stops is live: both end by themselves. Ready: it can do its work now. Not being ready is no fault.
class Health {
 public:
  static constexpr absl::Duration kStalledAfter = absl::Seconds(10);

  explicit Health(const Clock* clock = Clock::Real(), absl::Duration stalled_after = kStalledAfter)
      : clock_(clock), stalled_after_(stalled_after) {}

  // The event loop has come round; call it well within every `stalled_after`.
  void Moved();

  // Whether the daemon can do its work; `why` is for people. Ignored once it stops.
  void SetReady(const absl::Status& why);
  // From here on it is not ready, and live to its end. Idempotent: the first `why` counts.
  void BeginStop(const std::string& why);

  absl::Status Live() const;   // UNAVAILABLE reason STALLED
  absl::Status Ready() const;  // UNAVAILABLE reason STARTING or STOPPING, or what SetReady was given

 private:
  const Clock* const clock_;
  const absl::Duration stalled_after_;

  mutable Mutex mutex_;
  absl::Time moved_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // infinite: the loop has not begun
  absl::Status ready_ ABSL_GUARDED_BY(mutex_);                         // looked at once `judged_`
  bool judged_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string why_stopping_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::daemon
