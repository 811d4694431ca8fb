#pragma once

#include <string>

#include "absl/time/time.h"
#include "tests/support/dice.h"

namespace syncopate::testing {

// One TCP connection to "host:port" on this machine that sends malformed data or none. The connection is closed with
// the object. No call blocks for long.
class HostilePeer {
 public:
  explicit HostilePeer(const std::string& address);
  ~HostilePeer();
  HostilePeer(const HostilePeer&) = delete;
  HostilePeer& operator=(const HostilePeer&) = delete;

  bool connected() const { return connected_; }
  // Sends as many bytes as the other side takes at once.
  void Send(const std::string& bytes);
  // Reads and discards until the other side closes; false if it does not close within `timeout`.
  bool WaitClosed(absl::Duration timeout);

 private:
  const int fd_;
  bool connected_ = false;
};

// Draws one kind of malformed data: random frames of HTTP/2, with and without a preface; malformed headers; half a
// request of HTTP/1.1; half a TLS handshake.
std::string Garbage(Dice& dice);

}  // namespace syncopate::testing
