#include "services/auth/access.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace syncopate::auth {
namespace {

constexpr size_t kSchemeBytes = 7;  // "Bearer "
constexpr char kWrongRole[] = "WRONG_ROLE";

absl::Status Unauthenticated(absl::string_view reason, const std::string& message) {
  return Error(absl::StatusCode::kUnauthenticated, reason, message);
}

}  // namespace

absl::StatusOr<Caller> Authenticate(const Shown& shown, const std::string& trust_domain, const BearerTokens* tokens) {
  if (shown.certificate) {
    SYNCOPATE_ASSIGN_OR_RETURN(AuthRole role, RoleOfUris(shown.uris, trust_domain));
    return Caller{role, shown.uris.front()};
  }
  if (tokens == nullptr) return Unauthenticated("NO_CREDENTIALS", "a client certificate is needed");
  if (shown.authorization.empty()) {
    return Unauthenticated("NO_CREDENTIALS", "a client certificate or a bearer token is needed");
  }
  if (!absl::StartsWithIgnoreCase(shown.authorization, "Bearer ")) {
    return Unauthenticated("BAD_TOKEN", "the authorization metadata is not 'Bearer <token>'");
  }
  std::optional<AuthRole> role = tokens->Match(shown.authorization.substr(kSchemeBytes));
  if (!role.has_value()) return Unauthenticated("BAD_TOKEN", "the bearer token is not known here");
  return Caller{*role, absl::StrCat("a token of ", AuthRoleName(*role))};
}

absl::Status Authorize(const Caller& caller, const std::string& path) {
  const Permission* permission = FindPermission(path);
  if (permission != nullptr && permission->roles.Contains(caller.role)) return absl::OkStatus();
  const std::string who = permission == nullptr ? "nobody" : permission->roles.ToString();
  return Error(absl::StatusCode::kPermissionDenied,
               permission != nullptr && permission->says_hello ? kWrongRole : "NOT_ALLOWED",
               absl::StrCat("the role ", AuthRoleName(caller.role), " may not call ", path, "; ", who, " may"));
}

absl::Status CheckIs(const Caller& caller, const std::string& role) {
  if (role == AuthRoleName(caller.role)) return absl::OkStatus();
  return Error(
      absl::StatusCode::kPermissionDenied, kWrongRole,
      absl::StrCat(caller.name, " says hello as another role than ", AuthRoleName(caller.role), ", which is its own"));
}

}  // namespace syncopate::auth
