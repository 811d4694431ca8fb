#include "base/acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"

// gRPC 1.51's own listener never accepts again once descriptors have run out. This listener keeps a spare descriptor
// for that case, and its owner hands connections to gRPC.
namespace syncopate {
namespace {

constexpr int kBacklog = 1024;
constexpr int kRetryMs = 50;

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

bool ToSocketAddress(const HostPort& from, SocketAddress* address) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address->storage);
  // Only numeric addresses: a name could mean several addresses, and it must be clear on which one we listen.
  if (inet_pton(AF_INET, from.host == "localhost" ? "127.0.0.1" : from.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(from.port);
    address->size = sizeof(sockaddr_in);
    return true;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address->storage);
  if (inet_pton(AF_INET6, from.host.c_str(), &v6->sin6_addr) != 1) return false;
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(from.port);
  address->size = sizeof(sockaddr_in6);
  return true;
}

absl::Status ListenError(const HostPort& endpoint, int error) {
  std::string where = endpoint.ToString();
  ErrorMetadata metadata = {{"address", where}};
  if (error == EADDRINUSE) {
    return Error(absl::StatusCode::kAlreadyExists, "ADDRESS_IN_USE",
                 absl::StrCat("cannot listen on ", where,
                              ": another process uses this port; stop it or choose another port (0 picks a free one)"),
                 metadata);
  }
  if (error == EACCES || error == EPERM) {
    return Error(absl::StatusCode::kPermissionDenied, "ADDRESS_FORBIDDEN",
                 absl::StrCat("cannot listen on ", where, ": this user may not bind that port; choose one above 1023"),
                 metadata);
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_ADDRESS",
               absl::StrCat("cannot listen on ", where, ": ", std::strerror(error)), metadata);
}

int SpareDescriptor() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

absl::Status CheckTarget(const std::string& address) {
  SYNCOPATE_ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(address));
  if (target.port != 0) return absl::OkStatus();
  return Error(
      absl::StatusCode::kInvalidArgument, "BAD_ADDRESS",
      absl::StrCat("port 0 of ", target.host, " cannot be connected to; give the port that the peer listens on"),
      {{"address", address}});
}

absl::StatusOr<HostPort> ParseListenAddress(const std::string& address) {
  SYNCOPATE_ASSIGN_OR_RETURN(HostPort parsed, ParseHostPort(address));
  SocketAddress unused;
  if (ToSocketAddress(parsed, &unused)) return parsed;
  return Error(absl::StatusCode::kInvalidArgument, "BAD_ADDRESS",
               absl::StrCat("cannot listen on ", address, ": the host must be an IP address or localhost"),
               {{"address", address}});
}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const HostPort& endpoint) {
  SocketAddress address;
  if (!ToSocketAddress(endpoint, &address)) return ListenError(endpoint, EINVAL);
  std::unique_ptr<Acceptor> acceptor(new Acceptor());
  acceptor->endpoint_ = endpoint;
  int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return ListenError(endpoint, errno);
  acceptor->listener_ = fd;
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // for a restart; two listeners still clash
  if (bind(fd, address.get(), address.size) != 0 || listen(fd, kBacklog) != 0) return ListenError(endpoint, errno);
  // Port 0 has been replaced by a real one.
  if (getsockname(fd, address.get(), &address.size) != 0) return ListenError(endpoint, errno);
  uint16_t port = address.storage.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port
                                                       : reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port;
  acceptor->endpoint_.port = ntohs(port);
  acceptor->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  acceptor->spare_ = SpareDescriptor();
  if (acceptor->wake_ < 0 || acceptor->spare_ < 0) return ListenError(endpoint, errno);
  return acceptor;
}

Acceptor::~Acceptor() {
  Stop();
  for (int fd : {wake_, spare_}) {
    if (fd >= 0) close(fd);
  }
}

void Acceptor::Start(std::function<void(int)> on_connection) {
  on_connection_ = std::move(on_connection);
  thread_ = std::thread([this] { Loop(); });
}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    uint64_t one = 1;
    // An eventfd takes this write unless its counter is full, and then the thread is awake already.
    [[maybe_unused]] ssize_t written = write(wake_, &one, sizeof(one));
    thread_.join();
  }
  if (listener_ >= 0) close(std::exchange(listener_, -1));
}

void Acceptor::Loop() {
  pollfd watched[2] = {{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
  while (true) {
    if (poll(watched, 2, -1) < 0 && errno != EINTR) {
      SYNCOPATE_LOG(kError, "listener %s: poll failed: %s", endpoint_.ToString(), std::strerror(errno));
      return;
    }
    if (watched[1].revents != 0) return;
    if (watched[0].revents == 0) continue;
    int fd = Accept();
    if (fd >= 0) on_connection_(fd);
  }
}

int Acceptor::Accept() {
  int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) {
    exhausted_ = false;
    int on = 1;
    // Messages are small and need an answer: waiting to fill a packet would cost 40 ms each.
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  } else if (errno == EMFILE || errno == ENFILE) {
    RefuseOne();
  } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
    SYNCOPATE_LOG(kWarning, "listener %s: accept failed: %s", endpoint_.ToString(), std::strerror(errno));
  }
  return fd;
}

// Otherwise the waiting connection would keep poll() ready for ever, and its client would wait for nothing.
void Acceptor::RefuseOne() {
  if (!std::exchange(exhausted_, true)) {
    SYNCOPATE_LOG(kWarning, "listener %s: out of file descriptors, connections are refused; raise ulimit -n",
                  endpoint_.ToString());
  }
  // Frees one descriptor to accept and close the connection, so that its client sees the refusal at once.
  if (spare_ >= 0) close(std::exchange(spare_, -1));
  int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd >= 0) close(fd);
  spare_ = SpareDescriptor();
  if (spare_ >= 0) return;
  pollfd stop = {wake_, POLLIN, 0};
  poll(&stop, 1, kRetryMs);  // another thread took the descriptor; waits instead of spinning until one is free
}

}  // namespace syncopate
