#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "base/host_port.h"
#include "base/status.h"

// TCP connections; every wait has a deadline, a time of Clock::Real(). Errors of all calls that talk to a peer:
// UNAVAILABLE (reason RANK_LOST) if the peer is gone or too slow.
namespace syncopate {

class TcpSocket {
 public:
  TcpSocket() = default;
  // `fd` is a connected socket; `peer` names the other end in errors, e.g. "rank 2".
  TcpSocket(FileDescriptor fd, std::string peer);

  // Sends all of `bytes` and returns true. With `stop_if_readable` it stops and returns false as soon as the peer has sent
  // something, which the caller must read first.
  absl::StatusOr<bool> Send(const void* from, int64_t bytes, absl::Time until, bool stop_if_readable = false);
  // Receives exactly `bytes`.
  absl::Status Receive(void* to, int64_t bytes, absl::Time until);
  // Shuts the connection down, which wakes threads that wait in it, on both ends. Thread-safe.
  void ShutDown() const;

  const std::string& peer() const { return peer_; }
  void set_peer(std::string peer) { peer_ = std::move(peer); }
  bool valid() const { return fd_.valid(); }

 private:
  // True if one of `events` occurred; false if `stop_if_readable` and there is something to read.
  absl::StatusOr<bool> Wait(short events, absl::Time until, bool stop_if_readable) const;

  FileDescriptor fd_;
  std::string peer_;
};

// A listening socket on a port that the kernel chooses.
class TcpListener {
 public:
  // Listens at `host`. INVALID_ARGUMENT (reason BAD_ADDRESS) if no address is known for it, else UNAVAILABLE (reason
  // SYSTEM).
  static absl::StatusOr<TcpListener> Open(const std::string& host);

  uint16_t port() const { return port_; }
  // Waits for one connection. DEADLINE_EXCEEDED (reason DEADLINE) if there is none by `until`.
  absl::StatusOr<TcpSocket> Accept(absl::Time until) const;

 private:
  FileDescriptor fd_;
  uint16_t port_ = 0;
};

// Connects to `address`. RANK_LOST if no process answers there in time.
absl::StatusOr<TcpSocket> DialTcp(const HostPort& address, const std::string& peer, absl::Time until);

}  // namespace syncopate
