#pragma once

#include <signal.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncopate::daemon {

// SIGINT, SIGTERM, SIGHUP and SIGCHLD as events that one thread waits for, instead of handlers. Make it before any
// other thread starts, so that they inherit the mask; SIGPIPE is ignored from then on. Restores the mask at its end.
class SignalInbox {
 public:
  struct Received {
    bool interrupt = false;  // somebody wants the process to end
    bool child = false;      // some child changed its state
  };

  static absl::StatusOr<SignalInbox> Open();
  ~SignalInbox();
  SignalInbox(SignalInbox&& other) noexcept;
  SignalInbox& operator=(SignalInbox&&) = delete;

  // What came within `timeout`, at once when there is something.
  Received Wait(absl::Duration timeout);

 private:
  SignalInbox(int descriptor, const sigset_t& before) : descriptor_(descriptor), before_(before) {}

  int descriptor_ = -1;
  sigset_t before_{};
};

}  // namespace syncopate::daemon
