#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/host_port.h"
#include "base/mutex.h"

namespace syncopate {

// OK if `address` is host:port with a host of any kind (a name is resolved at the time of the connection) and a port
// from 1 to 65535; else INVALID_ARGUMENT (reason BAD_ADDRESS).
absl::Status CheckTarget(const std::string& address);

// Where to listen: the host is an IP address or "localhost", any port. INVALID_ARGUMENT (reason BAD_ADDRESS) naming
// what is wrong.
absl::StatusOr<HostPort> ParseListenAddress(const std::string& address);

// A listening socket and the thread that accepts on it. Survives file-descriptor exhaustion: a spare descriptor is
// given up to accept and close the waiting connection, so that the backlog drains and the listener works again as soon
// as descriptors are free. Under gRPC servers and HTTP responders alike.
class Acceptor {
 public:
  // Binds and listens. ALREADY_EXISTS (reason ADDRESS_IN_USE), PERMISSION_DENIED or INVALID_ARGUMENT naming `endpoint`.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const HostPort& endpoint);
  ~Acceptor();  // Stop
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Starts the thread. `on_connection(fd)` runs on it for each connection, owns fd (close-on-exec, non-blocking)
  // and must not block. Call once.
  void Start(std::function<void(int fd)> on_connection);
  // For an owner with an event loop of its own, instead of Start: one connection (close-on-exec, non-blocking, the
  // caller's to close), or -1 if none waits or there is no descriptor for it.
  int Accept();
  // Closes the listener and joins the thread; idempotent. Not from inside on_connection.
  void Stop();

  const HostPort& endpoint() const { return endpoint_; }  // with the port that was bound
  int listener() const { return listener_; }

 private:
  Acceptor() = default;
  void Loop();
  void RefuseOne();

  HostPort endpoint_;
  int listener_ = -1;
  int wake_ = -1;           // eventfd that ends the loop
  int spare_ = -1;          // given up when descriptors run out; used by whoever accepts
  bool exhausted_ = false;  // was out of descriptors last time; used by whoever accepts
  std::function<void(int)> on_connection_;
  std::thread thread_;
};

}  // namespace syncopate
