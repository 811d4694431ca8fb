#pragma once

#include <sys/types.h>

#include <map>
#include <string>

#include "absl/status/status.h"

namespace syncopate::rpc {

// Counts a server's connections, in all and per peer address, and decides whether one more may come in. The sockets
// belong to gRPC, which does not say when it closes one: each is remembered by descriptor and inode, and looked at
// again when a limit seems to be reached. Not thread-safe: used by the accepting thread only.
class ConnectionLimit {
 public:
  struct Options {
    int total = 4096;
    int per_peer = 512;  // half of the descriptors that a process commonly has: one peer alone cannot use them up
  };

  explicit ConnectionLimit(const Options& options) : options_(options) {}

  // OK: the connected socket `fd` counts until it is closed. RESOURCE_EXHAUSTED (reason TOO_MANY_CONNECTIONS) that
  // names the peer and the limit: the caller closes `fd`.
  absl::Status Admit(int fd);

 private:
  struct Connection {
    ino_t inode = 0;
    std::string peer;
  };

  absl::Status Check(const std::string& peer) const;
  void Forget(std::map<int, Connection>::iterator connection);
  void ForgetClosed();

  const Options options_;
  std::map<int, Connection> open_;    // keyed by descriptor
  std::map<std::string, int> peers_;  // number of connections per peer
};

}  // namespace syncopate::rpc
