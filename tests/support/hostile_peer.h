#pragma once

#include <string>

#include "absl/time/time.h"
#include "tests/support/dice.h"

namespace syncopate::testing {

// One TCP connection to "host:port" on this machine that speaks nonsense or nothing, closed with the object. Never
// blocks for long.
class HostilePeer {
 public:
  explicit HostilePeer(const std::string& address);
  ~HostilePeer();
  HostilePeer(const HostilePeer&) = delete;
  HostilePeer& operator=(const HostilePeer&) = delete;

  bool connected() const { return connected_; }
  // Sends as much as the other side takes at once.
  void Send(const std::string& bytes);
  // Reads and forgets until the other side closes; false if it does not within `timeout`.
  bool WaitClosed(absl::Duration timeout);

 private:
  const int fd_;
  bool connected_ = false;
};

// Frames of HTTP/2 at random, with and without a preface, headers that are none, half a request of HTTP/1.1, half a
// handshake of TLS.
std::string Garbage(Dice& dice);

}  // namespace syncopate::testing
