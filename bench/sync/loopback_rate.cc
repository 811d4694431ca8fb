#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "bench/measure/figures.h"
#include "bench/sync/ceiling.h"

namespace syncopate::bench {
namespace {

constexpr size_t kChunk = 1 << 20;  // as large as the chunks of the transport grpc, which is compared with this rate
constexpr int kRepetitions = 3;
constexpr int kPatienceSeconds = 20;

absl::Status SocketError(const std::string& what) {
  return Error(absl::StatusCode::kUnavailable, "NO_CEILING", absl::StrCat(what, ": ", std::strerror(errno)));
}

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct Connection {
  Socket sender;
  Socket receiver;
};

// Makes two connected sockets; reads and writes give up after kPatienceSeconds.
absl::StatusOr<Connection> Connect() {
  Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Socket sender(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.fd(), any, size) != 0 || ::listen(listener.fd(), 1) != 0 ||
      ::getsockname(listener.fd(), any, &size) != 0 || ::connect(sender.fd(), any, size) != 0) {
    return SocketError("a connection over loopback");
  }
  Socket receiver(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (receiver.fd() < 0) return SocketError("accepting a connection over loopback");
  const timeval patience{kPatienceSeconds, 0};
  ::setsockopt(sender.fd(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  ::setsockopt(receiver.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  return Connection{std::move(sender), std::move(receiver)};
}

// Moves `bytes` through one socket with `move` (send or recv); true if all bytes were moved.
template <typename Move>
bool MoveAll(int64_t bytes, const Move& move) {
  while (bytes > 0) {
    const ssize_t count = move(std::min<int64_t>(bytes, kChunk));
    if (count <= 0) return false;
    bytes -= count;
  }
  return true;
}

absl::StatusOr<double> RateOnce(int connections, int64_t bytes) {
  std::vector<Connection> ends;
  for (int i = 0; i < connections; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(Connection connection, Connect());
    ends.push_back(std::move(connection));
  }
  std::vector<char> sent(kChunk, 'w');
  std::vector<char> good(2 * ends.size(), 0);
  // The time includes the start of the threads, which is small against the bytes of a model.
  const absl::Time begin = Clock::Real()->Now();
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < ends.size(); ++i) {
      threads.emplace_back([&, i] {
        good[2 * i] =
            MoveAll(bytes, [&](int64_t n) { return ::send(ends[i].sender.fd(), sent.data(), n, MSG_NOSIGNAL); }) ? 1
                                                                                                                 : 0;
      });
      threads.emplace_back([&, i] {
        std::vector<char> buffer(kChunk);
        good[2 * i + 1] =
            MoveAll(bytes, [&](int64_t n) { return ::recv(ends[i].receiver.fd(), buffer.data(), n, 0); }) ? 1 : 0;
      });
    }
  }
  const absl::Duration taken = Clock::Real()->Now() - begin;
  if (std::find(good.begin(), good.end(), 0) != good.end()) return SocketError("bytes over loopback");
  return static_cast<double>(bytes) / absl::ToDoubleSeconds(taken);
}

}  // namespace

absl::StatusOr<double> LoopbackRate(int connections, int64_t bytes) {
  std::vector<double> rates;
  for (int i = 0; i < kRepetitions; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(const double rate, RateOnce(connections, bytes));
    rates.push_back(rate);
  }
  return Median(std::move(rates));
}

}  // namespace syncopate::bench
