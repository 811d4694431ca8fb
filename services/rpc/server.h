#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/support/server_interceptor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/acceptor.h"
#include "base/mutex.h"
#include "services/auth/transport_security.h"
#include "services/rpc/accept/connection_limit.h"
#include "services/rpc/accept/connection_watch.h"
#include "services/rpc/guarded_services.h"
#include "services/rpc/health_feed.h"

namespace syncopate::rpc {

// One gRPC server of a daemon, with health v1, reflection and channelz beside the daemon's own services.
//
//   SYNCOPATE_ASSIGN_OR_RETURN(auto server, Server::Start({.address = "127.0.0.1:0"}, {&rollout_service}));
//   SYNCOPATE_LOG(kInfo, "listening on %s", server->address());
//   ...
//   server->Stop(absl::Seconds(2));
//
// Our own Acceptor accepts connections, not gRPC's listener, which in 1.51 never recovers when a process has run out of
// file descriptors. Thread-safe.
class Server {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // host:port to listen on, host a literal address; port 0 picks one
    // Without TLS only loopback addresses are allowed, unless the operator declares that the network is trusted.
    bool insecure_bind = false;
    // Decides which peers may connect and what they may call; null: everybody, everything, in plaintext.
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;
    int64_t max_receive_bytes = 4 << 20;  // a larger message ends its call with RESOURCE_EXHAUSTED
    int64_t max_send_bytes = 64 << 20;
    int64_t max_metadata_bytes = 8 << 10;
    int max_concurrent_streams = 100;                     // per connection
    ConnectionLimit::Options connections = {};            // connections beyond these are closed, and it is logged
    absl::Duration min_ping_interval = absl::Seconds(1);  // clients may ping this often, also without calls
    absl::Duration keepalive_time = absl::Seconds(5);     // the server's own ping after this much silence
    absl::Duration keepalive_timeout = absl::Seconds(3);  // no answer for this long: the client is gone
    absl::Duration handshake_timeout = absl::Seconds(5);  // a connection that shakes hands for longer is closed
    // Called once for each server; e.g. GrpcServerMetrics::InterceptorFactory() of services/telemetry.
    std::vector<std::function<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>()>> interceptors =
        {};

    // The source of the answers of health v1 (see HealthFeed), instead of SERVING from the start.
    std::optional<HealthFeed::Source> health = std::nullopt;
    // Serves health v1 and nothing else, so no reflection and no channelz; then any address may be bound.
    bool health_only = false;

    absl::Status Validate() const;
  };

  // Listens and serves; `services` are borrowed and must outlive the server.
  // INVALID_ARGUMENT (reason BAD_ADDRESS, INSECURE_BIND or BAD_OPTIONS), ALREADY_EXISTS (reason ADDRESS_IN_USE) naming
  // the address, PERMISSION_DENIED for a port that this user may not bind.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options,
                                                       const std::vector<grpc::Service*>& services);

  ~Server();  // calls Stop with no grace
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const std::string& address() const { return address_; }  // host:port as bound
  int port() const { return port_; }

  // Sets the answer of health v1, for the server as a whole and for each service. SERVING from the start. Not for a
  // server with Options::health.
  void SetServing(bool serving);

  // Accepts no more connections and calls, gives running calls `grace` to end, then cancels them, and returns when
  // every handler has ended. Blocks; idempotent. Never call it from a gRPC callback.
  void Stop(absl::Duration grace);

 private:
  Server() = default;

  std::string address_;
  int port_ = 0;
  std::unique_ptr<grpc::CallbackGenericService> refusal_;  // health_only: answers UNIMPLEMENTED to every other call
  std::unique_ptr<GuardedServices> guarded_;               // null without security
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
  std::shared_ptr<ConnectionWatch> watch_;
  std::unique_ptr<HealthFeed> health_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncopate::rpc
