#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/auth/permissions.h"
#include "services/auth/tokens.h"

// Who calls, and whether they may. Pure functions over what a connection and a call show; thread-safe.
namespace syncopate::auth {

// What a peer has shown. URI names are those of a certificate that was verified.
struct Shown {
  bool certificate = false;
  std::vector<std::string> uris = {};
  std::string authorization = {};  // the metadata of that name, e.g. "Bearer abc"; "" if there is none
};

struct Caller {
  AuthRole role;
  std::string name;  // "spiffe://syncopate/role/admin", or "a token of admin"
};

// By the certificate if there is one, else by the token; `tokens` is null if the daemon takes none. UNAUTHENTICATED
// (reason NO_CREDENTIALS or BAD_TOKEN), or PERMISSION_DENIED (reason NO_ROLE). No message holds a token.
absl::StatusOr<Caller> Authenticate(const Shown& shown, const std::string& trust_domain, const BearerTokens* tokens);

// OK if that role may call "/package.Service/Method"; else PERMISSION_DENIED naming who may: reason WRONG_ROLE if the
// call is one that says hello, else NOT_ALLOWED.
absl::Status Authorize(const Caller& caller, const std::string& path);

// OK if a caller that says hello as `role` ("trainer") is that by its certificate or token; else PERMISSION_DENIED
// (reason WRONG_ROLE).
absl::Status CheckIs(const Caller& caller, const std::string& role);

}  // namespace syncopate::auth
