#pragma once

#include <signal.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncopate::daemon {

// SIGINT, SIGTERM, SIGHUP and SIGCHLD as events that one thread waits for, instead of handlers. Open it before any
// other thread starts, so that all threads inherit the signal mask; SIGPIPE is ignored from then on. The destructor
// restores the mask.
class SignalInbox {
 public:
  struct Received {
    bool interrupt = false;  // SIGINT, SIGTERM or SIGHUP: the process is asked to end
    bool child = false;      // SIGCHLD: a child has changed its state
  };

  static absl::StatusOr<SignalInbox> Open();
  ~SignalInbox();
  SignalInbox(SignalInbox&& other) noexcept;
  SignalInbox& operator=(SignalInbox&&) = delete;

  // Blocks until a signal has arrived, for at most `timeout` and at most 1 s; returns what has arrived.
  Received Wait(absl::Duration timeout);

 private:
  SignalInbox(int descriptor, const sigset_t& before) : descriptor_(descriptor), before_(before) {}

  int descriptor_ = -1;
  sigset_t before_{};
};

}  // namespace syncopate::daemon
