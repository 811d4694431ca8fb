#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/auth/role.h"

namespace syncopate::auth {

// The bearer tokens that a daemon accepts, each with its role, and the token that the daemon shows itself. The file has
// one line for each token; comments begin with '#':
//
//   admin      6jW2Oq...   (32 bytes or more of A-Z a-z 0-9 - . _ ~ + / =)
//   rollouter  Zk3x0v...
//
// A role may have several tokens, so that a new one is accepted before the old one is withdrawn; the first is shown.
// Error messages never contain a token. Immutable, thread-safe.
class BearerTokens {
 public:
  static constexpr size_t kMinBytes = 32;
  static constexpr size_t kMaxBytes = 1024;

  // INVALID_ARGUMENT (reason BAD_SECURITY) that names the line.
  static absl::StatusOr<BearerTokens> Parse(const std::string& text);

  // The role of a token that a peer showed. Takes constant time: it does not depend on which token matches, on whether
  // one does, or on how much of one is right.
  std::optional<AuthRole> Match(const std::string& shown) const;
  // The token to show as `role`; "" if there is none.
  std::string Find(AuthRole role) const;

 private:
  struct Entry {
    AuthRole role;
    std::string token;
    std::string digest;  // SHA-256, so that the time of a comparison does not depend on the token's length
  };
  std::vector<Entry> entries_;
};

}  // namespace syncopate::auth
