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

// Judges each call before a service sees it: identifies the caller and looks its role up in the table of permissions.
// Thread-safe.
class CallGuard {
 public:
  // JudgeEarly lets an identified caller make the calls in `judged_later`, whatever the table says: the creator of this
  // guard must judge those calls with Judge.
  CallGuard(std::shared_ptr<CredentialWatch> watch, std::shared_ptr<RefusalLog> refusals,
            std::set<std::string> judged_later = {});

  // OK, or UNAUTHENTICATED or PERMISSION_DENIED; a refusal is written to the log of refusals.
  absl::Status Judge(const Shown& shown, const std::string& path) const;
  // Judge for gRPC, which asks before it looks for the method. An error here has no details on the wire, so its reason
  // is part of the message.
  grpc::Status JudgeEarly(const Shown& shown, const std::string& path) const;

 private:
  absl::StatusOr<Caller> Identify(const Shown& shown) const;
  absl::Status Refuse(const absl::StatusOr<Caller>& caller, const std::string& path, const absl::Status& why) const;

  const std::shared_ptr<CredentialWatch> watch_;
  const std::shared_ptr<RefusalLog> refusals_;
  const std::set<std::string> judged_later_;
};

// What the certificate of a connection shows. `connection` is gRPC's authentication context.
Shown ShownBy(const grpc::AuthContext& connection);

// The guard of TLS servers, as an argument for ServerCredentials::SetAuthMetadataProcessor.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeProcessor(std::shared_ptr<const CallGuard> guard);

// Plaintext credentials with a guard: gRPC's own plaintext credentials for C++ accept no guard.
std::shared_ptr<grpc::ServerCredentials> PlaintextServerCredentials(std::shared_ptr<const CallGuard> guard);

}  // namespace syncopate::auth
