#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "base/host_port.h"
#include "base/status.h"

// TCP connections whose every wait ends at a time of Clock::Real(). Errors of all that talks to a peer: UNAVAILABLE
// (reason RANK_LOST) if it is gone or too slow.
namespace syncopate {

class TcpSocket {
 public:
  TcpSocket() = default;
  // `fd` is a connected socket; `peer` is what errors call it, e.g. "rank 2".
  TcpSocket(FileDescriptor fd, std::string peer);

  // All of `bytes`. With `stop_if_readable` it returns false as soon as the peer has sent something, which then is more
  // urgent; else true.
  absl::StatusOr<bool> Send(const void* from, int64_t bytes, absl::Time until, bool stop_if_readable = false);
  // Exactly `bytes`.
  absl::Status Receive(void* to, int64_t bytes, absl::Time until);
  // Wakes whoever waits in this connection, on both ends. Thread-safe.
  void ShutDown() const;

  const std::string& peer() const { return peer_; }
  void set_peer(std::string peer) { peer_ = std::move(peer); }
  bool valid() const { return fd_.valid(); }

 private:
  // True if `events` came, false if only something to read did.
  absl::StatusOr<bool> Wait(short events, absl::Time until, bool stop_if_readable) const;

  FileDescriptor fd_;
  std::string peer_;
};

// A listening socket at `host`, on a port of the kernel's choice.
class TcpListener {
 public:
  // INVALID_ARGUMENT (reason BAD_ADDRESS) for a host that has no address here, UNAVAILABLE (reason SYSTEM) else.
  static absl::StatusOr<TcpListener> Open(const std::string& host);

  uint16_t port() const { return port_; }
  // DEADLINE_EXCEEDED (reason DEADLINE) if nobody has come.
  absl::StatusOr<TcpSocket> Accept(absl::Time until) const;

 private:
  FileDescriptor fd_;
  uint16_t port_ = 0;
};

// RANK_LOST if nobody answers there in time.
absl::StatusOr<TcpSocket> DialTcp(const HostPort& address, const std::string& peer, absl::Time until);

}  // namespace syncopate
