#pragma once

#include <grpcpp/security/tls_certificate_verifier.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "services/auth/credentials.h"
#include "services/auth/refusal_log.h"

namespace syncopate::auth {

// Judges the certificate of a peer when a TLS handshake is otherwise done: the peer has proved that it holds the key,
// and OpenSSL, through TrustAnchors, judges chain, dates and use. gRPC's own verification is switched off for three
// things that it cannot do: it says to nobody why it refused (the peer sees a broken connection, the log nothing); it
// wants a certificate from everybody, where clients with tokens have none; and it holds the host name against the
// certificate, where pods are dialled by address and the role is what counts. So this class is all there is between a
// stranger and the daemon: what it does not refuse is let in, and an exception to that has to be argued here.
//
// Made by gRPC's ExternalCertificateVerifier; runs on gRPC's threads and does not block. Thread-safe.
class PeerVerifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  struct Options {
    TrustAnchors::Use use = TrustAnchors::Use::kClient;  // what the peer is
    std::string trust_domain;
    AuthRoles roles = {};  // one of which it must have
    std::shared_ptr<CredentialWatch> watch;
    std::shared_ptr<RefusalLog> refusals;
  };

  explicit PeerVerifier(Options options) : options_(std::move(options)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> callback, grpc::Status* sync_status) override;
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}  // Verify is done when it returns

 private:
  absl::Status Judge(const grpc::experimental::TlsCustomVerificationCheckRequest& request) const;

  const Options options_;
};

}  // namespace syncopate::auth
