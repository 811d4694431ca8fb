#include "services/auth/tokens.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/credential_file.h"
#include "base/sha256.h"
#include "base/status.h"

namespace syncopate::auth {
namespace {

absl::Status BadLine(size_t line, const std::string& what) {
  return BadSecurity(absl::StrCat("line ", line, " ", what));
}

// RFC 6750, b64token.
bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_' || c == '~' || c == '+' || c == '/' || c == '=';
}

}  // namespace

absl::StatusOr<BearerTokens> BearerTokens::Parse(const std::string& text) {
  BearerTokens tokens;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::vector<std::string> words = absl::StrSplit(lines[i], absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty() || words.front().front() == '#') continue;
    if (words.size() != 2) return BadLine(i + 1, "is not '<role> <token>'");
    absl::StatusOr<AuthRole> role = ParseAuthRole(words[0]);
    if (!role.ok()) return BadLine(i + 1, "does not begin with trainer, rollouter, synchronizer, admin or viewer");
    const std::string& token = words[1];
    if (token.size() < kMinBytes || token.size() > kMaxBytes) {
      return BadLine(i + 1, absl::StrCat("has a token of ", token.size(), " bytes; 32 to 1024 are allowed"));
    }
    if (!std::all_of(token.begin(), token.end(), IsTokenCharacter)) {
      return BadLine(i + 1, "has a token with characters other than A-Z a-z 0-9 - . _ ~ + / =");
    }
    tokens.entries_.push_back({*role, token, Sha256Hex(token)});
  }
  if (tokens.entries_.empty()) return BadLine(lines.size(), "is the last and there is no token");
  return tokens;
}

std::optional<AuthRole> BearerTokens::Match(const std::string& shown) const {
  const std::string digest = Sha256Hex(shown);
  std::optional<AuthRole> role;
  for (const Entry& entry : entries_) {
    // Compares digests, all of them and in constant time: the time of an answer tells nothing about the tokens.
    if (CRYPTO_memcmp(digest.data(), entry.digest.data(), digest.size()) == 0) role = entry.role;
  }
  return role;
}

std::string BearerTokens::Find(AuthRole role) const {
  for (const Entry& entry : entries_) {
    if (entry.role == role) return entry.token;
  }
  return "";
}

}  // namespace syncopate::auth
