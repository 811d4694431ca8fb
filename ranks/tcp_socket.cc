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

// Waits until one of `events` has occurred on `fd`. RANK_LOST with the message `late` at `until`; the error of `go_on`.
absl::Status WaitFor(int fd, short events, absl::Time until, const SocketGoOn& go_on, const std::string& late) {
  constexpr absl::Duration kLookEvery = absl::Milliseconds(100);
  for (;;) {
    pollfd waited{fd, events, 0};
    const absl::Time look = go_on == nullptr ? until : std::min(until, Clock::Real()->Now() + kLookEvery);
    const int ready = poll(&waited, 1, MillisecondsTo(look));
    if (ready < 0 && errno != EINTR) return SystemError("waiting for a rank");
    if (ready > 0) return absl::OkStatus();  // the next send() or recv() reports an error or a hang-up
    if (Clock::Real()->Now() >= until) return RankLost(late);
    if (go_on != nullptr) SYNCOPATE_RETURN_IF_ERROR(go_on());
  }
}

}  // namespace

TcpSocket::TcpSocket(FileDescriptor fd, std::string peer) : fd_(std::move(fd)), peer_(std::move(peer)) {
  SendAtOnce(fd_.get());
}

absl::Status TcpSocket::Wait(short events, absl::Time until, const SocketGoOn& go_on) const {
  return WaitFor(fd_.get(), events, until, go_on, absl::StrCat(peer_, " does not answer in time"));
}

absl::Status TcpSocket::Secure(const SocketSecurity& security, SocketEnd end, absl::Time until) {
  if (security == nullptr) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(cipher_, security(fd_.get(), end, peer_, until));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TcpSocket::TrySend(const void* from, int64_t bytes) {
  if (cipher_ != nullptr) return cipher_->Send(from, bytes);
  const ssize_t sent = send(fd_.get(), from, static_cast<size_t>(bytes), MSG_NOSIGNAL);
  if (sent >= 0) return sent;
  if (errno == EAGAIN || errno == EINTR) return 0;
  return RankLost(absl::StrCat(peer_, " is gone: ", std::strerror(errno)));
}

absl::StatusOr<int64_t> TcpSocket::TryReceive(void* to, int64_t bytes) {
  if (cipher_ != nullptr) return cipher_->Receive(to, bytes);
  const ssize_t received = recv(fd_.get(), to, static_cast<size_t>(bytes), 0);
  if (received > 0) return received;
  if (received == 0) return RankLost(absl::StrCat(peer_, " has ended"));
  if (errno == EAGAIN || errno == EINTR) return 0;
  return RankLost(absl::StrCat(peer_, " is gone: ", std::strerror(errno)));
}

absl::Status TcpSocket::Send(const void* from, int64_t bytes, absl::Time until, const SocketGoOn& go_on) {
  const char* next = static_cast<const char*>(from);
  while (bytes > 0) {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t sent, TrySend(next, bytes));
    if (sent == 0) SYNCOPATE_RETURN_IF_ERROR(Wait(POLLOUT, until, go_on));
    next += sent;
    bytes -= sent;
  }
  return absl::OkStatus();
}

absl::Status TcpSocket::Receive(void* to, int64_t bytes, absl::Time until, const SocketGoOn& go_on) {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t received, TryReceive(next, bytes));
    if (received == 0) SYNCOPATE_RETURN_IF_ERROR(Wait(POLLIN, until, go_on));
    next += received;
    bytes -= received;
  }
  return absl::OkStatus();
}

void TcpSocket::ShutDown() const {
  if (fd_.valid()) shutdown(fd_.get(), SHUT_RDWR);
}

absl::StatusOr<TcpListener> TcpListener::Open(const HostPort& address) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(address.host, address.port, /*to_listen=*/true));
  TcpListener listener;
  listener.fd_ = OpenSocket(*addresses);
  if (!listener.fd_.valid()) return SystemError("opening a socket for the ranks");
  const int fd = listener.fd_.get();
  // Connections of a group that has ended must not keep a configured port from the next one.
  const int on = 1;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) return SystemError("preparing a socket");
  if (bind(fd, addresses->ai_addr, addresses->ai_addrlen) != 0 || listen(fd, 64) != 0) {
    return SystemError(absl::StrCat("listening at ", address.ToString(), " for the other ranks"));
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

absl::StatusOr<TcpSocket> DialTcp(const HostPort& address, const std::string& peer, absl::Time until,
                                  const SocketGoOn& go_on) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(address.host, address.port, /*to_listen=*/false));
  FileDescriptor fd = OpenSocket(*addresses);
  if (!fd.valid()) return SystemError("opening a socket");
  auto refused = [&](int code) {
    return RankLost(absl::StrCat(peer, " does not listen at ", address.ToString(), ": ", std::strerror(code)));
  };
  if (connect(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 && errno != EINPROGRESS) return refused(errno);
  SYNCOPATE_RETURN_IF_ERROR(
      WaitFor(fd.get(), POLLOUT, until, go_on, absl::StrCat(peer, " does not answer at ", address.ToString())));
  int failed = 0;
  socklen_t length = sizeof(failed);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failed, &length) != 0) return SystemError("asking for a connection");
  if (failed != 0) return refused(failed);
  return TcpSocket(std::move(fd), peer);
}

}  // namespace syncopate
