#include "services/rpc/server.h"

#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "services/rpc/accept/connection_watch.h"
#include "services/rpc/grpc_process.h"

namespace syncopate::rpc {
namespace {

absl::Status CheckPositive(bool good, const char* name) {
  if (good) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               absl::StrCat("Server::Options.", name, " must be positive and fit in 31 bits"));
}

int Milliseconds(absl::Duration duration) { return static_cast<int>(absl::ToInt64Milliseconds(duration)); }

bool Encrypted(const Server::Options& options) { return options.security != nullptr && options.security->encrypted(); }

// Logged as a warning, because an operator who allowed plaintext must not overlook it.
void WarnOfPlaintext(const Server::Options& options, const HostPort& endpoint) {
  if (endpoint.IsLoopback() || options.health_only || Encrypted(options)) return;
  SYNCOPATE_LOG(kWarning, "INSECURE: %s is open to the network without TLS, as insecure_bind allows: %s",
                endpoint.ToString(),
                options.security == nullptr
                    ? "every process that reaches it controls this daemon and reads what it sends"
                    : "bearer tokens protect it, but a process that listens on the network reads them and all else");
}

std::shared_ptr<grpc::ServerCredentials> MakeCredentials(const Server::Options& options,
                                                         const GuardedServices* guarded) {
  return guarded == nullptr ? grpc::InsecureServerCredentials() : options.security->ServerCredentials(guarded->calls());
}

void Configure(const Server::Options& options, const std::shared_ptr<ConnectionWatch>& watch,
               grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_receive_bytes));
  builder->SetMaxSendMessageSize(static_cast<int>(options.max_send_bytes));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(options.max_metadata_bytes));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options.keepalive_timeout));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              Milliseconds(options.min_ping_interval));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A server of small messages needs no window that fits the link, and gRPC's probe of the link's bandwidth would send
  // a ping for nearly every heartbeat.
  if (options.max_receive_bytes <= Server::Options().max_receive_bytes)
    builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(options.handshake_timeout));
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(ConnectionWatch::Interceptors(watch));
  for (const auto& make : options.interceptors) factories.push_back(make());
  // The last interceptor sees a status first, so the others see the one that the caller gets.
  if (options.security != nullptr) factories.push_back(GuardedServices::Interceptors());
  builder->experimental().SetInterceptorCreators(std::move(factories));
}

// The first message of a call may arrive before gRPC reports the call, so it must fit the limit.
ConnectionWatch::Options MakeWatchOptions(const Server::Options& options) {
  ConnectionWatch::Options watch;
  watch.at_once = std::max(watch.at_once, options.max_receive_bytes + watch.in_time);
  return watch;
}

// gRPC keeps these as process-wide plugins that every later builder uses; registering twice is harmless.
void EnablePlugins() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::channelz::experimental::InitChannelzService();
}

// Removes the plugins of EnablePlugins from one builder.
class WithoutPlugins final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override { plugins->clear(); }
};

// Lets connections in, up to a limit. Used only on the accepting thread.
class Gate {
 public:
  Gate(std::string address, const ConnectionLimit::Options& options) : address_(std::move(address)), limit_(options) {}

  // False: the connection was closed; only the first of several refusals in a row is logged.
  bool Admit(int fd) {
    absl::Status status = limit_.Admit(fd);
    const bool was_refusing = std::exchange(refusing_, !status.ok());
    if (status.ok()) return true;
    if (!was_refusing) {
      SYNCOPATE_LOG(kWarning, "listener %s refuses connections: %s", address_, status.ToString());
    }
    ::close(fd);
    return false;
  }

 private:
  const std::string address_;
  ConnectionLimit limit_;
  bool refusing_ = false;
};

}  // namespace

absl::Status Server::Options::Validate() const {
  constexpr int64_t kMaxInt = std::numeric_limits<int>::max();
  SYNCOPATE_ASSIGN_OR_RETURN(HostPort endpoint, ParseListenAddress(address));
  if (!endpoint.IsLoopback() && !insecure_bind && !health_only && !Encrypted(*this)) {
    return Error(absl::StatusCode::kInvalidArgument, "INSECURE_BIND",
                 absl::StrCat("refusing to listen on ", endpoint.ToString(),
                              " without TLS: every process that reaches this port controls the daemon. Configure TLS "
                              "(security.tls_cert, tls_key, tls_ca), bind a loopback address, or allow it explicitly "
                              "with insecure_bind if the network is trusted"),
                 {{"address", endpoint.ToString()}});
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckPositive(max_receive_bytes > 0 && max_receive_bytes <= kMaxInt, "max_receive_bytes"));
  SYNCOPATE_RETURN_IF_ERROR(CheckPositive(max_send_bytes > 0 && max_send_bytes <= kMaxInt, "max_send_bytes"));
  SYNCOPATE_RETURN_IF_ERROR(
      CheckPositive(max_metadata_bytes > 0 && max_metadata_bytes <= kMaxInt, "max_metadata_bytes"));
  SYNCOPATE_RETURN_IF_ERROR(CheckPositive(max_concurrent_streams > 0, "max_concurrent_streams"));
  SYNCOPATE_RETURN_IF_ERROR(CheckPositive(connections.total > 0, "connections.total"));
  SYNCOPATE_RETURN_IF_ERROR(CheckPositive(connections.per_peer > 0, "connections.per_peer"));
  SYNCOPATE_RETURN_IF_ERROR(CheckPositive(min_ping_interval > absl::ZeroDuration(), "min_ping_interval"));
  SYNCOPATE_RETURN_IF_ERROR(CheckPositive(keepalive_time > absl::ZeroDuration(), "keepalive_time"));
  SYNCOPATE_RETURN_IF_ERROR(CheckPositive(handshake_timeout > absl::ZeroDuration(), "handshake_timeout"));
  return CheckPositive(keepalive_timeout > absl::ZeroDuration(), "keepalive_timeout");
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options,
                                                      const std::vector<grpc::Service*>& services) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(HostPort endpoint, ParseListenAddress(options.address));
  std::unique_ptr<Server> server(new Server());
  SYNCOPATE_ASSIGN_OR_RETURN(server->acceptor_, Acceptor::Listen(endpoint));
  server->port_ = server->acceptor_->endpoint().port;
  server->address_ = server->acceptor_->endpoint().ToString();

  WarnOfPlaintext(options, server->acceptor_->endpoint());
  RouteGrpcLog();
  KeepGrpcThreads();
  EnablePlugins();
  grpc::ServerBuilder builder;
  server->watch_ = std::make_shared<ConnectionWatch>(server->address_, MakeWatchOptions(options));
  auto watch = server->watch_;
  Configure(options, watch, &builder);
  if (options.health_only) {
    builder.SetOption(std::make_unique<WithoutPlugins>());
    server->refusal_ = std::make_unique<grpc::CallbackGenericService>();
    builder.RegisterCallbackGenericService(server->refusal_.get());
  }
  if (options.security != nullptr) server->guarded_ = std::make_unique<GuardedServices>(options.security, services);
  for (grpc::Service* service : server->guarded_ == nullptr ? services : server->guarded_->services()) {
    builder.RegisterService(service);
  }
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> connections =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          MakeCredentials(options, server->guarded_.get()));
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) {
    return Error(absl::StatusCode::kInternal, "SERVER_START",
                 absl::StrCat("gRPC could not start a server for ", server->address_, "; its log says why"));
  }
  int listener = server->acceptor_->listener();
  auto gate = std::make_shared<Gate>(server->address_, options.connections);
  auto let_in = [connections, listener, gate, watch](int fd) {
    if (!gate->Admit(fd)) return;
    watch->Add(fd);
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = fd;
    connections->HandleNewConnection(&connection);
  };
  server->acceptor_->Start(let_in);
  if (options.health.has_value()) {
    server->health_ = std::make_unique<HealthFeed>(*options.health, server->server_->GetHealthCheckService());
  } else {
    server->SetServing(true);
  }
  return server;
}

Server::~Server() { Stop(absl::ZeroDuration()); }

void Server::SetServing(bool serving) { server_->GetHealthCheckService()->SetServingStatus(serving); }

void Server::Stop(absl::Duration grace) {
  if (server_ == nullptr) return;  // Start failed
  {
    MutexLock lock(&mutex_);
    if (stopped_) return;
    stopped_ = true;
  }
  health_.reset();  // Shutdown sets NOT_SERVING from here on
  acceptor_->Stop();
  watch_->Stop();
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
}

}  // namespace syncopate::rpc
