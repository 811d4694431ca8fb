#include "ranks/tcp_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/reasons.h"
#include "ranks/collective.h"

namespace syncopate {
namespace {

// Rounded up, because poll() takes whole milliseconds and would spin during the last one.
int MillisecondsTo(absl::Time until) {
  const absl::Duration left = until - Clock::Real()->Now();
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(left) + (left > absl::ZeroDuration() ? 1 : 0), 0, 60'000));
}

absl::Status SystemError(const std::string& what) {
  return Error(absl::StatusCode::kUnavailable, "SYSTEM", absl::StrCat(what, ": ", std::strerror(errno)));
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, uint16_t port, bool to_listen) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = to_listen ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed == 0) return Addresses(found, &freeaddrinfo);
  return Error(absl::StatusCode::kInvalidArgument, "BAD_ADDRESS",
               absl::StrCat("no address is known for ", host, ": ", gai_strerror(failed)));
}

FileDescriptor OpenSocket(const addrinfo& address) {
  return FileDescriptor(socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Turns Nagle's algorithm off: each call's frames are whole messages, which must not wait for more data.
void SendAtOnce(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // a failure only costs speed
}

}  // namespace

TcpSocket::TcpSocket(FileDescriptor fd, std::string peer) : fd_(std::move(fd)), peer_(std::move(peer)) {
  SendAtOnce(fd_.get());
}

absl::StatusOr<bool> TcpSocket::Wait(short events, absl::Time until, bool stop_if_readable) const {
  for (;;) {
    pollfd waited{fd_.get(), static_cast<short>(stop_if_readable ? events | POLLIN : events), 0};
    const int ready = poll(&waited, 1, MillisecondsTo(until));
    if (ready < 0 && errno != EINTR) return SystemError("waiting for a rank");
    // A peer that sends while it should receive reports an error. The caller must read it instead of sending on into a full
    // buffer.
    if (ready > 0 && stop_if_readable && (waited.revents & POLLIN) != 0) return false;
    if (ready > 0) return true;  // the next send() or recv() reports an error or a hang-up
    if (Clock::Real()->Now() >= until) return RankLost(absl::StrCat(peer_, " does not answer in time"));
  }
}

absl::StatusOr<bool> TcpSocket::Send(const void* from, int64_t bytes, absl::Time until, bool stop_if_readable) {
  const char* next = static_cast<const char*>(from);
  while (bytes > 0) {
    SYNCOPATE_ASSIGN_OR_RETURN(const bool writable, Wait(POLLOUT, until, stop_if_readable));
    if (!writable) return false;
    const ssize_t sent = send(fd_.get(), next, static_cast<size_t>(bytes), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent < 0) return RankLost(absl::StrCat(peer_, " is gone: ", std::strerror(errno)));
    next += sent;
    bytes -= sent;
  }
  return true;
}

absl::Status TcpSocket::Receive(void* to, int64_t bytes, absl::Time until) {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    SYNCOPATE_RETURN_IF_ERROR(Wait(POLLIN, until, /*stop_if_readable=*/false).status());
    const ssize_t received = recv(fd_.get(), next, static_cast<size_t>(bytes), 0);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (received < 0) return RankLost(absl::StrCat(peer_, " is gone: ", std::strerror(errno)));
    if (received == 0) return RankLost(absl::StrCat(peer_, " has ended"));
    next += received;
    bytes -= received;
  }
  return absl::OkStatus();
}

void TcpSocket::ShutDown() const {
  if (fd_.valid()) shutdown(fd_.get(), SHUT_RDWR);
}

absl::StatusOr<TcpListener> TcpListener::Open(const std::string& host) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, 0, /*to_listen=*/true));
  TcpListener listener;
  listener.fd_ = OpenSocket(*addresses);
  if (!listener.fd_.valid()) return SystemError("opening a socket for the ranks");
  const int fd = listener.fd_.get();
  if (bind(fd, addresses->ai_addr, addresses->ai_addrlen) != 0 || listen(fd, 64) != 0) {
    return SystemError(absl::StrCat("listening at ", host, " for the ranks"));
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return SystemError("asking for a port");
  listener.port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                     : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return listener;
}

absl::StatusOr<TcpSocket> TcpListener::Accept(absl::Time until) const {
  for (;;) {
    FileDescriptor connection(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) return TcpSocket(std::move(connection), "a rank that has not said which");
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) return SystemError("accepting a rank");
    if (Clock::Real()->Now() >= until) {
      return Error(absl::StatusCode::kDeadlineExceeded, reason::kDeadline, "no rank has come in time");
    }
    pollfd waited{fd_.get(), POLLIN, 0};
    if (poll(&waited, 1, MillisecondsTo(until)) < 0 && errno != EINTR) return SystemError("waiting for ranks");
  }
}

absl::StatusOr<TcpSocket> DialTcp(const HostPort& address, const std::string& peer, absl::Time until) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(address.host, address.port, /*to_listen=*/false));
  FileDescriptor fd = OpenSocket(*addresses);
  if (!fd.valid()) return SystemError("opening a socket");
  if (connect(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return RankLost(absl::StrCat(peer, " does not listen at ", address.ToString(), ": ", std::strerror(errno)));
  }
  pollfd waited{fd.get(), POLLOUT, 0};
  while (poll(&waited, 1, MillisecondsTo(until)) <= 0) {
    if (Clock::Real()->Now() >= until) {
      return RankLost(absl::StrCat(peer, " does not answer at ", address.ToString()));
    }
  }
  int failed = 0;
  socklen_t length = sizeof(failed);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failed, &length) != 0 || failed != 0) {
    return RankLost(absl::StrCat(peer, " does not listen at ", address.ToString(), ": ", std::strerror(failed)));
  }
  return TcpSocket(std::move(fd), peer);
}

}  // namespace syncopate
