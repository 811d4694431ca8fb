#include "ranks/group_secret.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/uuid.h"

namespace syncopate {

std::string DrawGroupSecret() { return RandomBytes(kGroupSecretBytes); }

bool IsGroupSecret(absl::string_view secret, absl::string_view shown) {
  return secret.size() == kGroupSecretBytes && shown.size() == secret.size() &&
         CRYPTO_memcmp(secret.data(), shown.data(), secret.size()) == 0;
}

std::string GroupSecretAssignment(absl::string_view secret) {
  return absl::StrCat(kGroupSecretVariable, "=", absl::BytesToHexString(secret));
}

absl::StatusOr<std::string> ParseGroupSecret(const char* text) {
  const absl::string_view digits = text == nullptr ? "" : text;
  if (digits.empty()) return std::string();
  const bool good = digits.size() == 2 * kGroupSecretBytes &&
                    std::all_of(digits.begin(), digits.end(), [](char c) { return absl::ascii_isxdigit(c); });
  if (good) return absl::HexStringToBytes(digits);
  return Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG",
               absl::StrCat(kGroupSecretVariable, " in the environment must be ", 2 * kGroupSecretBytes,
                            " hexadecimal digits, as `openssl rand -hex 32` makes them"));
}

absl::Status WrongGroupSecret(absl::string_view rank, absl::string_view how) {
  return Error(absl::StatusCode::kPermissionDenied, reason::kWrongSecret,
               absl::StrCat(rank, " does not show the secret of this group: ", how,
                            "; ranks that cannot have it need mutual TLS or a bearer token (security.*)"));
}

}  // namespace syncopate
