#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::auth {

// The role of a peer, as its certificate or its token says.
enum class AuthRole { kTrainer, kRollouter, kSynchronizer, kAdmin, kViewer, kClient, kEnvironment };

// All roles, in the order of the enum.
const std::vector<AuthRole>& AllAuthRoles();

// "trainer", "rollouter", "synchronizer", "admin", "viewer", "client" or "environment", which is the worker of users' Python.
const char* AuthRoleName(AuthRole role);
// INVALID_ARGUMENT (reason BAD_ROLE) that names the roles.
absl::StatusOr<AuthRole> ParseAuthRole(const std::string& name);

// A set of roles. A plain value.
class AuthRoles {
 public:
  constexpr AuthRoles() = default;
  constexpr AuthRoles(std::initializer_list<AuthRole> roles) {
    for (AuthRole role : roles) bits_ |= Bit(role);
  }

  constexpr bool Contains(AuthRole role) const { return (bits_ & Bit(role)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  std::string ToString() const;  // "admin or viewer"; "nobody" if empty

 private:
  static constexpr uint32_t Bit(AuthRole role) { return 1u << static_cast<int>(role); }
  uint32_t bits_ = 0;
};

// The role in "spiffe://<trust_domain>/role/<role>". INVALID_ARGUMENT (reason BAD_SPIFFE_ID) if `uri` is anything else.
absl::StatusOr<AuthRole> RoleOfSpiffeId(const std::string& uri, const std::string& trust_domain);

// The role of a certificate, from its URI names, of which there must be exactly one: a certificate with two roles would
// be trusted with the sum of both. PERMISSION_DENIED (reason NO_ROLE) that says what the certificate has instead.
absl::StatusOr<AuthRole> RoleOfUris(const std::vector<std::string>& uris, const std::string& trust_domain);

}  // namespace syncopate::auth
