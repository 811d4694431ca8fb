#pragma once

#include <grpcpp/security/tls_certificate_verifier.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "services/auth/credentials.h"
#include "services/auth/refusal_log.h"

namespace syncopate::auth {

// Checks the certificate of a peer when the rest of a TLS handshake is done: the peer has proved that it has the
// private key, and OpenSSL, through TrustAnchors, checks the chain, the dates and the key usage. gRPC's own
// verification is switched off for three reasons. It reports to nobody why it refused (the peer sees a broken
// connection, the log nothing). It requires a certificate from every client, but clients with tokens have none. It
// compares the host name with the certificate, but pods are dialled by address, and the role is what counts. So this
// class is the only check between a stranger and the daemon: a connection that it does not refuse is let in, and an
// exception must be argued for here.
//
// Created by gRPC's ExternalCertificateVerifier; runs on gRPC's threads and does not block. Thread-safe.
class PeerVerifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  struct Options {
    TrustAnchors::Use use = TrustAnchors::Use::kClient;  // the peer's side of the connection
    std::string trust_domain;
    AuthRoles roles = {};  // the peer must have one of these roles
    std::shared_ptr<CredentialWatch> watch;
    std::shared_ptr<RefusalLog> refusals;
  };

  // OK if a peer with this certificate (PEM; empty: it showed none) and the intermediate ones in `chain` may connect.
  static absl::Status Judge(const Options& options, const std::string& certificate, const std::string& chain);

  explicit PeerVerifier(Options options) : options_(std::move(options)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> callback, grpc::Status* sync_status) override;
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}  // Verify is done when it returns

 private:
  const Options options_;
};

}  // namespace syncopate::auth
