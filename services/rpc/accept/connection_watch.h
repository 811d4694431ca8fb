#pragma once

#include <grpcpp/support/server_interceptor.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "base/mutex.h"

namespace syncopate::rpc {

// Cuts connections that send much and never begin a call. gRPC 1.51 reads a header block of any length before it checks
// its limits: an endless one costs memory without bound, or a core, and appears in no call. A connection that has begun
// a call is not checked again: with TLS its peer was let in by its certificate.
//
// Checks on a thread of its own, because the thread that hands gRPC a connection may be kept busy by it for as long as
// that connection sends. The sockets belong to gRPC; they are known by descriptor and inode, as in ConnectionLimit.
// Thread-safe.
class ConnectionWatch {
 public:
  struct Options {
    int64_t at_once = 8 << 20;    // bytes that a connection may send before its first call
    int64_t in_time = 256 << 10;  // the limit for a connection older than `patience`
    absl::Duration patience = absl::Seconds(10);
  };

  // `listener` names the server in the log.
  ConnectionWatch(std::string listener, const Options& options);
  ~ConnectionWatch();  // Stop
  ConnectionWatch(const ConnectionWatch&) = delete;
  ConnectionWatch& operator=(const ConnectionWatch&) = delete;

  // A connection was let in. Call it before gRPC gets the connection.
  void Add(int fd);
  // Joins the thread; idempotent.
  void Stop();

  // A call has begun on the connection from `peer`, in gRPC's notation: "ipv4:10.0.0.7:40112".
  void CallBegan(const std::string& peer);
  // A factory for a server's interceptors that calls CallBegan. `watch` is kept as long as the server exists.
  static std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors(
      std::shared_ptr<ConnectionWatch> watch);

 private:
  static constexpr absl::Duration kLookEvery = absl::Milliseconds(200);

  struct Connection {
    ino_t inode = 0;
    int port = 0;  // the peer's; the port alone identifies it, because notations of an address differ
    absl::Time since;
  };

  void Run();
  void LookLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string listener_;
  const Options options_;
  std::atomic<int64_t> silent_ = 0;  // size of connections_: once all peers have called, CallBegan costs nothing more
  Mutex mutex_;
  std::map<int, Connection> connections_ ABSL_GUARDED_BY(mutex_);  // without a call yet; keyed by descriptor
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Mutex join_mutex_;  // lets concurrent Stops join only once
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace syncopate::rpc
