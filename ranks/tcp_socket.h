#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "base/host_port.h"
#include "base/status.h"

// TCP connections; every wait has a deadline, a time of Clock::Real(). Errors of all calls that talk to a peer:
// UNAVAILABLE (reason RANK_LOST) if the peer is gone or too slow.
namespace syncopate {

// Encrypts what one connection carries. Used by the thread that uses the connection; does not block.
class SocketCipher {
 public:
  virtual ~SocketCipher() = default;
  // Sends or receives as much as is possible now; returns the number of bytes, 0 if none. UNAVAILABLE (reason
  // RANK_LOST).
  virtual absl::StatusOr<int64_t> Send(const void* from, int64_t bytes) = 0;
  virtual absl::StatusOr<int64_t> Receive(void* to, int64_t bytes) = 0;
};

enum class SocketEnd : uint8_t { kDials, kAccepts };

// Authenticates the other end of the connected socket `fd`, which the cipher borrows, and returns what encrypts the
// connection. Blocks until `until` at most. RANK_LOST, or the error for a peer that may not be a rank.
using SocketSecurity = std::function<absl::StatusOr<std::unique_ptr<SocketCipher>>(
    int fd, SocketEnd end, const std::string& peer, absl::Time until)>;

// Called repeatedly during a wait; an error from it ends the wait.
using SocketGoOn = std::function<absl::Status()>;

class TcpSocket {
 public:
  TcpSocket() = default;
  // `fd` is a connected socket; `peer` names the other end in errors, e.g. "rank 2".
  TcpSocket(FileDescriptor fd, std::string peer);

  // Encrypts the connection from here on; does nothing if `security` is null. Errors of `security`.
  absl::Status Secure(const SocketSecurity& security, SocketEnd end, absl::Time until);

  // Sends all of `bytes`.
  absl::Status Send(const void* from, int64_t bytes, absl::Time until, const SocketGoOn& go_on = nullptr);
  // Receives exactly `bytes`.
  absl::Status Receive(void* to, int64_t bytes, absl::Time until, const SocketGoOn& go_on = nullptr);
  // Send or receive what is possible now, and return as SocketCipher's calls do; neither blocks.
  absl::StatusOr<int64_t> TrySend(const void* from, int64_t bytes);
  absl::StatusOr<int64_t> TryReceive(void* to, int64_t bytes);
  // Shuts the connection down, which wakes threads that wait in it, on both ends. Thread-safe.
  void ShutDown() const;

  // For poll(), after a TrySend or TryReceive that moved nothing.
  int fd() const { return fd_.get(); }
  const std::string& peer() const { return peer_; }
  void set_peer(std::string peer) { peer_ = std::move(peer); }
  bool valid() const { return fd_.valid(); }

 private:
  // Waits until one of `events` has occurred.
  absl::Status Wait(short events, absl::Time until, const SocketGoOn& go_on) const;

  FileDescriptor fd_;
  std::string peer_;
  std::unique_ptr<SocketCipher> cipher_;  // null: plaintext
};

// A listening socket.
class TcpListener {
 public:
  // Listens at `address`; port 0 is one that the kernel chooses. INVALID_ARGUMENT (reason BAD_ADDRESS) if no address is
  // known for its host, else UNAVAILABLE (reason SYSTEM).
  static absl::StatusOr<TcpListener> Open(const HostPort& address);

  uint16_t port() const { return port_; }
  // Waits for one connection. DEADLINE_EXCEEDED (reason DEADLINE) if there is none by `until`.
  absl::StatusOr<TcpSocket> Accept(absl::Time until) const;

 private:
  FileDescriptor fd_;
  uint16_t port_ = 0;
};

// Connects to `address`. RANK_LOST if no process answers there in time; the error of `go_on`.
absl::StatusOr<TcpSocket> DialTcp(const HostPort& address, const std::string& peer, absl::Time until,
                                  const SocketGoOn& go_on = nullptr);

}  // namespace syncopate
