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
#include "ranks/tcp_socket.h"
#include "services/auth/access.h"
#include "services/auth/credentials.h"
#include "services/auth/refusal_log.h"
#include "syncopate/v1/config.pb.h"

namespace grpc::experimental {
class CertificateProviderInterface;
}

namespace syncopate::auth {

// How one process proves its identity, and what it requires of its peers: mutual TLS with roles in certificates, bearer
// tokens, or both. Part of Server::Options and ChannelOptions; a null pointer there means plaintext that lets everybody
// in.
//
//   SYNCOPATE_ASSIGN_OR_RETURN(auto security, TransportSecurity::Load(config.security(), "trainer"));
//   Server::Start({.address = ..., .security = security}, ...);
//   MakeChannel(address, {.security = security, .peer_role = "synchronizer"});
//
// With TLS each end shows a certificate, and checks the authority, the dates and the role of the other's (the role is
// in its only URI name, role.h). Host names are not checked, because pods are dialled by address. This class checks
// certificates itself, because gRPC 1.51 tells neither side why a handshake failed. A server that accepts tokens also
// lets clients without a certificate through the handshake; each of their calls then needs a token. The files are read
// again every `tls_reload`: new contents count for new connections, open connections go on. Thread-safe.
class TransportSecurity {
 public:
  struct Options {
    std::string role;  // the daemon's role; "" for a command line, which may have any role and show less
    std::string tls_cert = {};
    std::string tls_key = {};
    std::string tls_ca = {};
    absl::Duration tls_reload = absl::Seconds(10);
    std::string trust_domain = "syncopate";
    std::string token_file = {};
    const Clock* clock = Clock::Real();  // compared with the dates of certificates
  };

  // Null if no file is named. {role} in a path is replaced by the role, or by "admin" for a command line.
  // INVALID_ARGUMENT (reason BAD_SECURITY) or FAILED_PRECONDITION (CERTIFICATE_EXPIRED, CERTIFICATE_NOT_YET_VALID) that
  // names the file.
  static absl::StatusOr<std::shared_ptr<const TransportSecurity>> Load(Options options);
  static absl::StatusOr<std::shared_ptr<const TransportSecurity>> Load(const v1::SecuritySection& section,
                                                                       const std::string& role);

  bool encrypted() const { return !options_.tls_ca.empty(); }
  // When the certificate in use expires; nullopt without one.
  std::optional<absl::Time> certificate_expiry() const;
  // OK, or why the present contents of the files are not used.
  absl::Status health() const { return watch_->health(); }
  // Connections and calls that this process refused as a server, and connections that it refused as a client.
  int64_t refusals() const { return refusals_->count(); }

  // Credentials for one server. They authenticate each connection and each call, and let through the calls that the
  // table of permissions.h allows, and all calls of `judged_later` ("/package.Service/Method"), which the server must
  // pass to Judge().
  std::shared_ptr<grpc::ServerCredentials> ServerCredentials(std::set<std::string> judged_later = {}) const;
  // Whether the table allows this call: OK, UNAUTHENTICATED or PERMISSION_DENIED; a refusal is logged.
  absl::Status Judge(const grpc::ServerContextBase& context, const std::string& path) const;
  // Whether a caller of the HTTP endpoint, known by its Authorization header alone, may have answers: the role of its token
  // must be one that may call Generate. Errors as Judge.
  absl::Status JudgeEndpoint(const std::string& authorization) const;
  // Credentials for one channel, to a daemon of `peer_role`; "": of any role.
  std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const std::string& peer_role) const;
  // Interceptors that show the token on each call; empty without a token.
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> ClientInterceptors() const;

  // What encrypts the connections between the ranks of a group whose role is `role`, with TLS 1.3: both ends show a
  // certificate, and each checks the other's as for gRPC. Null without TLS. The result may outlive this object.
  SocketSecurity RankSockets(AuthRole role) const;

  // The caller of a call that was let through.
  absl::StatusOr<Caller> GetCaller(const grpc::ServerContextBase& context) const;

 private:
  static Shown ShownIn(const grpc::ServerContextBase& context);
  TransportSecurity(Options options, std::shared_ptr<CredentialWatch> watch);

  const Options options_;
  const std::shared_ptr<CredentialWatch> watch_;
  const std::shared_ptr<RefusalLog> refusals_;
  // Hands this process's certificate and key to gRPC, and reads them again; null without TLS.
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> identity_;
};

// The identity of a peer that says hello on a stream: read when the stream begins, compared with what the hello says. A
// plain value.
class HelloCaller {
 public:
  // `security` is the server's; null: the server authenticates nobody, and any role that a hello names is accepted.
  HelloCaller(const TransportSecurity* security, const grpc::ServerContextBase& context);

  // OK if the peer may say hello as `role`; PERMISSION_DENIED (reason WRONG_ROLE) if its certificate or token gives
  // another role.
  absl::Status CheckIs(const std::string& role) const;

 private:
  std::optional<absl::StatusOr<Caller>> caller_;
};

}  // namespace syncopate::auth
