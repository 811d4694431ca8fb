#include "tests/support/tcp_relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/clock.h"
#include "base/status.h"

namespace syncopate::testing {
namespace {

constexpr int kLookEveryMs = 20;  // how often the relay looks for a request of the test
// A download is over when it brings less than kLeastInWindow in a kWindow: messages of other calls may share its
// connection.
constexpr absl::Duration kWindow = absl::Milliseconds(20);
constexpr int64_t kLeastInWindow = 64 << 10;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

}  // namespace

TcpRelay::TcpRelay(int target) : target_(target), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  SYNCOPATE_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  SYNCOPATE_CHECK(::listen(listener_, 64) == 0);
  SYNCOPATE_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

TcpRelay::~TcpRelay() {
  stopped_ = true;
  acceptor_.join();
  std::vector<std::thread> carriers;
  {
    MutexLock lock(&mutex_);
    carriers.swap(carriers_);
  }
  for (std::thread& carrier : carriers) carrier.join();
  ::close(listener_);
}

void TcpRelay::CutOne(int64_t bytes) {
  threshold_ = bytes;
  mode_ = Mode::kCut;
}

void TcpRelay::HoldAll(int64_t bytes) {
  threshold_ = bytes;
  mode_ = Mode::kHold;
}

void TcpRelay::Release() { mode_ = Mode::kForward; }

void TcpRelay::Accept() {
  while (!stopped_) {
    pollfd ready = {listener_, POLLIN, 0};
    if (::poll(&ready, 1, kLookEveryMs) <= 0) continue;
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    MutexLock lock(&mutex_);
    carriers_.emplace_back([this, client] { Carry(client); });
  }
}

bool TcpRelay::Forward(int from, int to, int64_t* bytes) {
  std::array<char, 64 << 10> buffer;
  const ssize_t got = ::recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
  *bytes += got;
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t now = ::send(to, buffer.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
    if (now <= 0) return false;
    sent += now;
  }
  return true;
}

void TcpRelay::Carry(int client) {
  const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(target_);
  bool open = ::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const int on = 1;
  for (int socket : {client, server}) ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  int64_t up = 0, down = 0;  // `down` counts the present download
  int64_t down_before = 0;   // `down` at the beginning of the window
  bool holds = false, brings = false;
  absl::Time window = Clock::Real()->Now();
  while (open && !stopped_) {
    // While the relay stops reading, the bytes of the target stay in its socket.
    std::array<pollfd, 2> ready = {pollfd{client, POLLIN, 0}, {server, static_cast<int16_t>(holds ? 0 : POLLIN), 0}};
    ::poll(ready.data(), ready.size(), kLookEveryMs);
    const absl::Time now = Clock::Real()->Now();
    if (now - window > kWindow && !holds) {
      if (down - down_before < kLeastInWindow) down = 0;
      down_before = down;
      window = now;
    }
    if (ready[0].revents != 0) open = Forward(client, server, &up);
    if (ready[1].revents != 0 && open) open = Forward(server, client, &down);
    if (brings != (down > 0)) downloads_ += brings ? -1 : 1;
    brings = down > 0;
    const bool is_large = down > threshold_;
    Mode expected = Mode::kCut;
    if (is_large && mode_.compare_exchange_strong(expected, Mode::kForward)) {
      ++cut_;
      open = false;
    }
    if (is_large && !holds && mode_ == Mode::kHold) {
      holds = true;
      ++held_;
    }
    if (holds && mode_ != Mode::kHold) {
      holds = false;
      --held_;
    }
  }
  if (holds) --held_;
  if (brings) --downloads_;
  ::close(client);
  ::close(server);
}

}  // namespace syncopate::testing
