#include "services/auth/role.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace syncopate::auth {

const std::vector<AuthRole>& AllAuthRoles() {
  static const auto* roles =
      new std::vector<AuthRole>{AuthRole::kTrainer, AuthRole::kRollouter, AuthRole::kSynchronizer, AuthRole::kAdmin,
                                AuthRole::kViewer,  AuthRole::kClient,    AuthRole::kEnvironment};
  return *roles;
}

const char* AuthRoleName(AuthRole role) {
  switch (role) {
    case AuthRole::kTrainer:
      return "trainer";
    case AuthRole::kRollouter:
      return "rollouter";
    case AuthRole::kSynchronizer:
      return "synchronizer";
    case AuthRole::kAdmin:
      return "admin";
    case AuthRole::kViewer:
      return "viewer";
    case AuthRole::kClient:
      return "client";
    case AuthRole::kEnvironment:
      return "environment";
  }
  return "unknown";
}

absl::StatusOr<AuthRole> ParseAuthRole(const std::string& name) {
  for (AuthRole role : AllAuthRoles()) {
    if (name == AuthRoleName(role)) return role;
  }
  return Error(
      absl::StatusCode::kInvalidArgument, "BAD_ROLE",
      absl::StrCat("'", name,
                   "' is no role; there are trainer, rollouter, synchronizer, admin, viewer, client and environment"));
}

std::string AuthRoles::ToString() const {
  std::vector<std::string> names;
  for (AuthRole role : AllAuthRoles()) {
    if (Contains(role)) names.push_back(AuthRoleName(role));
  }
  return names.empty() ? "nobody" : absl::StrJoin(names, " or ");
}

absl::StatusOr<AuthRole> RoleOfSpiffeId(const std::string& uri, const std::string& trust_domain) {
  absl::string_view rest = uri;
  if (absl::ConsumePrefix(&rest, absl::StrCat("spiffe://", trust_domain, "/role/"))) {
    absl::StatusOr<AuthRole> role = ParseAuthRole(std::string(rest));
    if (role.ok()) return role;
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_SPIFFE_ID",
               absl::StrCat("'", uri, "' is not spiffe://", trust_domain, "/role/<role>"));
}

absl::StatusOr<AuthRole> RoleOfUris(const std::vector<std::string>& uris, const std::string& trust_domain) {
  auto refused = [](const std::string& why) {
    return Error(absl::StatusCode::kPermissionDenied, "NO_ROLE", absl::StrCat("the certificate gives no role: ", why));
  };
  if (uris.empty()) return refused(absl::StrCat("it has no name spiffe://", trust_domain, "/role/<role>"));
  // A SPIFFE certificate has exactly one URI; with several it would be unclear which role the holder acts in.
  if (uris.size() > 1) return refused(absl::StrCat("it has ", uris.size(), " URI names and one is allowed"));
  absl::StatusOr<AuthRole> role = RoleOfSpiffeId(uris.front(), trust_domain);
  return role.ok() ? role : refused(std::string(role.status().message()));
}

}  // namespace syncopate::auth
