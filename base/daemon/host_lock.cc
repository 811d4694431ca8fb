#include "base/daemon/host_lock.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"

namespace syncopate::daemon {

absl::StatusOr<std::shared_ptr<const HostLock>> HostLock::Acquire(const std::string& name, absl::Duration wait) {
  constexpr absl::Duration kLook = absl::Milliseconds(20);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The first byte of an abstract name is 0, and its length is that of the address.
  SYNCOPATE_CHECK(name.size() + 1 < sizeof(address.sun_path));
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const absl::Time deadline = Clock::Real()->Now() + wait;
  for (;;) {
    if (socket.valid() && ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) {
      return std::shared_ptr<const HostLock>(new HostLock(std::move(socket)));
    }
    if (!socket.valid() || errno != EADDRINUSE) {
      return Error(absl::StatusCode::kInternal, "HOST_LOCK",
                   absl::StrCat("no lock on ", name, " can be had: ", std::strerror(errno)));
    }
    if (Clock::Real()->Now() >= deadline) {
      return Error(absl::StatusCode::kDeadlineExceeded, "HOST_LOCK_TAKEN",
                   absl::StrCat("another process of this host had ", name, " for ", absl::FormatDuration(wait)));
    }
    absl::SleepFor(kLook);
  }
}

}  // namespace syncopate::daemon
