#include "tests/support/hostile_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/host_port.h"
#include "tests/support/run_harness.h"

namespace syncopate::testing {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Draws a frame of HTTP/2: its length, type and contents.
std::string RandomFrame(Dice& dice) {
  std::string frame(9, '\0');
  for (char& byte : frame) byte = static_cast<char>(dice.Between(0, 255));
  for (int64_t left = dice.Between(0, 300); left > 0; --left) frame.push_back(static_cast<char>(dice.Between(0, 255)));
  return frame;
}

}  // namespace

HostilePeer::HostilePeer(const std::string& address) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  auto parsed = ParseHostPort(address);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(parsed.ok() ? parsed->port : 0);
  connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
}

HostilePeer::~HostilePeer() { ::close(fd_); }

void HostilePeer::Send(const std::string& bytes) {
  ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool HostilePeer::WaitClosed(absl::Duration timeout) {
  return Eventually(timeout, [this] {
    std::array<char, 4096> buffer;
    const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  });
}

std::string Garbage(Dice& dice) {
  switch (dice.Between(0, 4)) {
    case 0:
      return RandomFrame(dice) + RandomFrame(dice);  // the connection has no preface
    case 1:
      return kPreface + RandomFrame(dice) + RandomFrame(dice);
    case 2:  // valid settings, then headers that are malformed
      return kPreface + std::string("\0\0\0\4\0\0\0\0\0", 9) + std::string("\0\0\x40\1\5\0\0\0\1", 9) +
             std::string(64, '\xff');
    case 3:
      return absl::StrCat("GET /metrics HTTP/1.1\r\nX: ",
                          std::string(static_cast<size_t>(dice.Between(1, 20000)), 'x'));
    default:
      return "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a client that speaks TLS";
  }
}

}  // namespace syncopate::testing
