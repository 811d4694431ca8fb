#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/auth/permissions.h"
#include "services/auth/tokens.h"

// Identifies a caller and decides whether it may make a call. Pure functions over what a connection and a call show;
// thread-safe.
namespace syncopate::auth {

// What a peer has shown. The URI names are those of a verified certificate.
struct Shown {
  bool certificate = false;
  std::vector<std::string> uris = {};
  std::string authorization = {};  // value of the metadata key "authorization", e.g. "Bearer abc"; "" if there is none
};

struct Caller {
  AuthRole role;
  std::string name;  // "spiffe://syncopate/role/admin", or "a token of admin"
};

// The caller's role, from the certificate if there is one, else from the token. `tokens` is null if the daemon accepts
// none. UNAUTHENTICATED (reason NO_CREDENTIALS or BAD_TOKEN), or PERMISSION_DENIED (reason NO_ROLE). No error message
// contains a token.
absl::StatusOr<Caller> Authenticate(const Shown& shown, const std::string& trust_domain, const BearerTokens* tokens);

// OK if the caller's role may call "/package.Service/Method"; else PERMISSION_DENIED that names the roles which may:
// reason WRONG_ROLE if the call begins with a hello, else NOT_ALLOWED.
absl::Status Authorize(const Caller& caller, const std::string& path);

// OK if the certificate or token of a caller that says hello as `role` ("trainer") gives it that role; else
// PERMISSION_DENIED (reason WRONG_ROLE).
absl::Status CheckIs(const Caller& caller, const std::string& role);

}  // namespace syncopate::auth
