#pragma once

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <set>
#include <string>

#include "services/auth/access.h"
#include "services/auth/credentials.h"
#include "services/auth/refusal_log.h"

namespace syncopate::auth {

// Judges each call before a service sees it: who makes it, and whether the table lets them. Thread-safe.
class CallGuard {
 public:
  // What the table denies of `judged_later` passes JudgeEarly: whoever names these calls judges them again.
  CallGuard(std::shared_ptr<CredentialWatch> watch, std::shared_ptr<RefusalLog> refusals,
            std::set<std::string> judged_later = {});

  // OK, or UNAUTHENTICATED or PERMISSION_DENIED, which is said in the log of refusals.
  absl::Status Judge(const Shown& shown, const std::string& path) const;
  // For gRPC, before it looks for the call: an error here has no details on the wire, so its reason is in the message.
  grpc::Status JudgeEarly(const Shown& shown, const std::string& path) const;

 private:
  absl::StatusOr<Caller> Identify(const Shown& shown) const;
  absl::Status Refuse(const absl::StatusOr<Caller>& caller, const std::string& path, const absl::Status& why) const;

  const std::shared_ptr<CredentialWatch> watch_;
  const std::shared_ptr<RefusalLog> refusals_;
  const std::set<std::string> judged_later_;
};

// What the certificate of a connection shows; gRPC's context of a connection.
Shown ShownBy(const grpc::AuthContext& connection);

// The guard of TLS servers, for ServerCredentials::SetAuthMetadataProcessor.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeProcessor(std::shared_ptr<const CallGuard> guard);

// Plaintext with a guard: gRPC's own plaintext credentials of C++ take none.
std::shared_ptr<grpc::ServerCredentials> PlaintextServerCredentials(std::shared_ptr<const CallGuard> guard);

}  // namespace syncopate::auth
