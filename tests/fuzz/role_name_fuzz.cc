// Parses an untrusted peer's identity: certificates in PEM, and after a 0 byte names and an authorization, one a line.
// The result is an error, or the one role that the one name of this trust domain spells.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/certificate.h"
#include "services/auth/access.h"
#include "tests/fuzz/fuzz_target.h"

using namespace syncopate;  // NOLINT: a program of its own

namespace {

constexpr char kDomain[] = "syncopate";

void Check(const auth::Shown& shown) {
  const auto caller = auth::Authenticate(shown, kDomain, nullptr);
  if (!caller.ok()) return;
  // Only a certificate gives a role here, by one exact name.
  const std::string spelt = absl::StrCat("spiffe://", kDomain, "/role/", auth::AuthRoleName(caller->role));
  if (!shown.certificate || shown.uris != std::vector<std::string>{spelt}) std::abort();
  (void)auth::Authorize(*caller, shown.authorization);
}

}  // namespace

SYNCOPATE_FUZZ_TARGET(role_name) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string pem = input.substr(0, end);
  const auto certificate = ReadCertificate(pem);
  if (certificate.ok()) Check({.certificate = true, .uris = certificate->uris});
  const auto anchors = TrustAnchors::Parse(pem);
  if (anchors.ok()) {
    (void)(*anchors)->Verify(pem, pem, TrustAnchors::Use::kClient, absl::UnixEpoch() + absl::Hours(24 * 365 * 57));
  }
  (void)CheckKey(pem, pem);
  std::vector<std::string> names;
  if (end < input.size()) names = absl::StrSplit(input.substr(end + 1), '\n');
  auth::Shown shown{.certificate = true};
  if (!names.empty()) {
    shown.authorization = names.back();
    names.pop_back();
  }
  shown.uris = names;
  Check(shown);
  shown.certificate = false;
  Check(shown);
  return 0;
}
