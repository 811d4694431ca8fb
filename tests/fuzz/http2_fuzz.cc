// Sends untrusted bytes to a live gRPC server: the connection ends when its client closes it, and the server answers
// the next one. The first byte decides whether a client's preface precedes the other bytes.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/clock.h"
#include "services/rpc/server.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/raw_connection.h"

namespace {

using syncopate::Clock;
using syncopate::rpc::Server;

constexpr size_t kFrameHeaderBytes = 9;

int Connect(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(port));
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) std::abort();
  return fd;
}

// Sends while the other side takes bytes, then closes the sending half. Returns what comes back until `enough` bytes
// have arrived or the other side closes, which it must do in time.
std::string Talk(int port, const std::string& words, size_t enough, bool hang_up) {
  const int fd = Connect(port);
  const absl::Time deadline = Clock::Real()->Now() + absl::Seconds(10);
  std::string heard;
  size_t said = 0;
  char buffer[4096];
  while (heard.size() < enough) {
    if (said == words.size() && hang_up) ::shutdown(fd, SHUT_WR);
    pollfd ready = {fd, static_cast<short>(said < words.size() ? POLLIN | POLLOUT : POLLIN), 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - Clock::Real()->Now());
    const int events = left <= 0 ? 0 : ::poll(&ready, 1, static_cast<int>(left));
    if (events < 0 && errno == EINTR) continue;  // the alarm of libFuzzer
    if (events <= 0) std::abort();               // the server neither answers nor closes
    if ((ready.revents & POLLOUT) != 0) {
      const ssize_t count = ::send(fd, words.data() + said, words.size() - said, MSG_NOSIGNAL | MSG_DONTWAIT);
      said = count > 0 ? said + static_cast<size_t>(count) : words.size();
    }
    if ((ready.revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      const ssize_t count = ::recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
      if (count == 0 || (count < 0 && errno != EAGAIN)) break;
      if (count > 0) heard.append(buffer, static_cast<size_t>(count));
    }
  }
  ::close(fd);
  return heard;
}

}  // namespace

SYNCOPATE_FUZZ_TARGET(http2) {
  // The server is stopped when the process ends: a server that outlives gRPC's own state would use freed state.
  static const std::unique_ptr<Server> server = [] {
    Server::Options options;
    options.connections = {.total = 1 << 16, .per_peer = 1 << 16};
    return Server::Start(options, {}).value();
  }();
  if (size == 0) return 0;
  const std::string hello = syncopate::testing::Http2Hello();
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int port = server->port();
  Talk(port, data[0] % 4 == 0 ? rest : hello + rest, std::string::npos, /*hang_up=*/true);
  const std::string settings = Talk(port, hello, kFrameHeaderBytes, /*hang_up=*/false);
  if (settings.size() < kFrameHeaderBytes || settings[3] != 4) std::abort();
  return 0;
}
