#include "base/daemon/signals.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::daemon {

absl::StatusOr<SignalInbox> SignalInbox::Open() {
  sigset_t wanted, before;
  ::sigemptyset(&wanted);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&wanted, signal);
  // Threads inherit the mask, so no thread that starts later is interrupted: signals arrive at the descriptor only.
  ::pthread_sigmask(SIG_BLOCK, &wanted, &before);
  // A peer that closes its socket must give write() an error, not end the process.
  ::signal(SIGPIPE, SIG_IGN);
  int descriptor = ::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor < 0) {
    return Error(absl::StatusCode::kUnavailable, "NO_SIGNALS", absl::StrCat("signalfd: ", std::strerror(errno)));
  }
  return SignalInbox(descriptor, before);
}

SignalInbox::~SignalInbox() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

SignalInbox::SignalInbox(SignalInbox&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), before_(other.before_) {}

SignalInbox::Received SignalInbox::Wait(absl::Duration timeout) {
  pollfd ready{descriptor_, POLLIN, 0};
  Received received;
  int64_t wait_ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout), 0, 1000);
  if (::poll(&ready, 1, static_cast<int>(wait_ms)) <= 0) return received;
  signalfd_siginfo info;
  while (::read(descriptor_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    (info.ssi_signo == SIGCHLD ? received.child : received.interrupt) = true;
  }
  return received;
}

}  // namespace syncopate::daemon
