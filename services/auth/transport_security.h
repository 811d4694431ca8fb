#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/client_interceptor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/auth/access.h"
#include "services/auth/credentials.h"
#include "services/auth/refusal_log.h"
#include "syncopate/v1/config.pb.h"

namespace grpc::experimental {
class CertificateProviderInterface;
}

namespace syncopate::auth {

// How one process proves who it is, and what it asks of its peers: mutual TLS with roles in certificates, bearer
// tokens, or both. Goes into Server::Options and ChannelOptions; a null pointer there means plaintext that lets
// everybody in.
//
//   SYNCOPATE_ASSIGN_OR_RETURN(auto security, TransportSecurity::Load(config.security(), "trainer"));
//   Server::Start({.address = ..., .security = security}, ...);
//   MakeChannel(address, {.security = security, .peer_role = "synchronizer"});
//
// With TLS each end shows a certificate and judges the other's by authority, dates and the role in its one URI name
// (role.h), not by host names: pods are dialled by address. Certificates are judged here and not by gRPC, which in 1.51
// tells neither side why a handshake failed. A server that takes tokens also lets clients without a certificate
// through the handshake; whatever they call then needs a token. Files are read again every `tls_reload`: what is
// replaced holds for new connections, open ones go on. Thread-safe.
class TransportSecurity {
 public:
  struct Options {
    std::string role;  // of this daemon; "" for a command line, which may have any role and show less
    std::string tls_cert = {};
    std::string tls_key = {};
    std::string tls_ca = {};
    absl::Duration tls_reload = absl::Seconds(10);
    std::string trust_domain = "syncopate";
    std::string token_file = {};
    const Clock* clock = Clock::Real();  // of certificates' dates
  };

  // Null if no file is named. {role} in a path is the role, "admin" for a command line. INVALID_ARGUMENT (reason
  // BAD_SECURITY) or FAILED_PRECONDITION (CERTIFICATE_EXPIRED, CERTIFICATE_NOT_YET_VALID) naming the file.
  static absl::StatusOr<std::shared_ptr<const TransportSecurity>> Load(Options options);
  static absl::StatusOr<std::shared_ptr<const TransportSecurity>> Load(const v1::SecuritySection& section,
                                                                       const std::string& role);

  bool encrypted() const { return !options_.tls_ca.empty(); }
  // When the certificate in use ends; nothing without one.
  std::optional<absl::Time> certificate_expiry() const;
  // OK, or why the files as they are now are not used.
  absl::Status health() const { return watch_->health(); }
  // Connections and calls that this process refused as a server, and connections that it refused as a client.
  int64_t refusals() const { return refusals_->count(); }

  // For one server. Authenticates each connection and each call, and lets through what the table of permissions.h says,
  // and all calls of `judged_later` ("/package.Service/Method"), which the server must give to Judge().
  std::shared_ptr<grpc::ServerCredentials> ServerCredentials(std::set<std::string> judged_later = {}) const;
  // Whether the table lets this call through: OK, UNAUTHENTICATED or PERMISSION_DENIED, which is logged.
  absl::Status Judge(const grpc::ServerContextBase& context, const std::string& path) const;
  // For one channel, to a daemon of `peer_role`; "": of any.
  std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const std::string& peer_role) const;
  // Shows the token on each call; empty without one.
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> ClientInterceptors() const;

  // Who makes a call that was let through.
  absl::StatusOr<Caller> CallerOf(const grpc::ServerContextBase& context) const;

 private:
  static Shown ShownIn(const grpc::ServerContextBase& context);
  TransportSecurity(Options options, std::shared_ptr<CredentialWatch> watch);

  const Options options_;
  const std::shared_ptr<CredentialWatch> watch_;
  const std::shared_ptr<RefusalLog> refusals_;
  // Hands this process's certificate and key to gRPC, and reads them again; null without TLS.
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> identity_;
};

// Who says hello on a stream: learned when the stream begins, compared with what the hello says. A plain value.
class HelloCaller {
 public:
  // `security` is the server's; null: it asks nobody who they are, and whatever role a hello says is taken.
  HelloCaller(const TransportSecurity* security, const grpc::ServerContextBase& context);

  // OK if it may say hello as `role`; PERMISSION_DENIED (reason WRONG_ROLE) if its certificate or token gives another.
  absl::Status CheckIs(const std::string& role) const;

 private:
  std::optional<absl::StatusOr<Caller>> caller_;
};

}  // namespace syncopate::auth
