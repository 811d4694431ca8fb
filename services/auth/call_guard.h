#pragma once

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "services/auth/access.h"
#include "services/auth/credentials.h"
#include "services/auth/refusal_log.h"

namespace syncopate::auth {

// Judges each call before a service sees it: who makes it, and whether the table lets them. Thread-safe.
class CallGuard {
 public:
  CallGuard(std::shared_ptr<CredentialWatch> watch, std::shared_ptr<RefusalLog> refusals);

  grpc::Status Judge(const Shown& shown, const std::string& path) const;

 private:
  const std::shared_ptr<CredentialWatch> watch_;
  const std::shared_ptr<RefusalLog> refusals_;
};

// What the certificate of a connection shows; gRPC's context of a connection.
Shown ShownBy(const grpc::AuthContext& connection);

// The guard of TLS servers, for ServerCredentials::SetAuthMetadataProcessor.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeProcessor(std::shared_ptr<const CallGuard> guard);

// Plaintext with a guard: gRPC's own plaintext credentials of C++ take none.
std::shared_ptr<grpc::ServerCredentials> PlaintextServerCredentials(std::shared_ptr<const CallGuard> guard);

}  // namespace syncopate::auth
