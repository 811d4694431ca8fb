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

// Parses an address to listen on: the host is an IP address or "localhost", any port. INVALID_ARGUMENT (reason
// BAD_ADDRESS) naming what is wrong.
absl::StatusOr<HostPort> ParseListenAddress(const std::string& address);

// A listening socket and the thread that accepts on it. Survives file-descriptor exhaustion: it closes a spare
// descriptor to accept and close the waiting connection, so that the backlog drains and the listener works again as
// soon as descriptors are free. gRPC servers and HTTP responders use it.
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
  // Accepts one connection; for an owner with its own event loop, instead of Start. Returns its descriptor
  // (close-on-exec, non-blocking, the caller closes it), or -1 if none waits or no descriptor is free.
  int Accept();
  // Closes the listener and joins the thread; idempotent. Must not be called from on_connection.
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
  int spare_ = -1;          // closed when descriptors run out; used by the accepting thread
  bool exhausted_ = false;  // the last accept found no free descriptor; used by the accepting thread
  std::function<void(int)> on_connection_;
  std::thread thread_;
};

}  // namespace syncopate
