#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "absl/time/time.h"
#include "base/clock.h"

// A TCP connection that sends what a test composes, and frames of HTTP/2 without a client.
namespace syncopate::testing {

class RawConnection {
 public:
  explicit RawConnection(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(port));
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~RawConnection() { ::close(fd_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  bool connected() const { return connected_; }

  // Returns false if the other side has closed the connection, or takes nothing for `patience`.
  bool Send(const std::string& bytes, absl::Duration patience = absl::Seconds(30)) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      pollfd ready = {fd_, POLLOUT | POLLRDHUP, 0};
      if (::poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) <= 0) return false;
      if ((ready.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) return false;
      const ssize_t count = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (count < 0) return false;
      sent += static_cast<size_t>(count);
    }
    return true;
  }

  // Reads and discards until the other side closes the connection; false if it does not within `timeout`.
  bool WaitClosed(absl::Duration timeout) {
    const absl::Time deadline = Clock::Real()->Now() + timeout;
    std::array<char, 65536> buffer;
    while (true) {
      const int64_t left = absl::ToInt64Milliseconds(deadline - Clock::Real()->Now());
      pollfd ready = {fd_, POLLIN, 0};
      if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) return false;
      const ssize_t count = ::recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return true;
    }
  }

 private:
  const int fd_;
  bool connected_ = false;
};

enum class Http2Frame : unsigned char { kHeaders = 1, kSettings = 4, kContinuation = 9 };

inline std::string MakeFrame(Http2Frame type, unsigned char flags, unsigned char stream, const std::string& payload) {
  const size_t size = payload.size();
  std::string frame = {static_cast<char>(size >> 16), static_cast<char>(size >> 8), static_cast<char>(size)};
  frame += {static_cast<char>(type), static_cast<char>(flags), 0, 0, 0, static_cast<char>(stream)};
  return frame + payload;
}

// The bytes that every client sends first.
inline std::string Http2Hello() {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + MakeFrame(Http2Frame::kSettings, 0, 0, "");
}

// Header blocks that never end: one first frame, then as many further frames as the other side takes.
struct HeaderFlood {
  std::string begin;
  std::string more;

  // A thousand small headers in each frame, all of which need memory.
  static HeaderFlood OfManyHeaders() {
    const std::string header(
        "\x00\x01"
        "a\x0a"
        "bbbbbbbbbb",
        14);
    std::string block;
    while (block.size() + header.size() <= 16384) block += header;
    return {MakeFrame(Http2Frame::kHeaders, 0, 1, header), MakeFrame(Http2Frame::kContinuation, 0, 1, block)};
  }
  // One header that claims a length of a gigabyte: a naive reader reads all bytes again with each frame.
  static HeaderFlood OfOneLongHeader() {
    const std::string length("\x7f\x81\xff\xff\xff\x03", 6);
    return {MakeFrame(Http2Frame::kHeaders, 0, 1, std::string(1, '\0') + length),
            MakeFrame(Http2Frame::kContinuation, 0, 1, std::string(16384, 'a'))};
  }
};

}  // namespace syncopate::testing
