#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

// Certificates as PEM text, parsed and verified with OpenSSL. Text from peers is untrusted: every function returns an
// error for text that it cannot parse. Pure functions of their arguments; thread-safe.
namespace syncopate {

// What a certificate says about its holder.
struct CertificateFacts {
  std::string subject;            // "CN=trainer,O=syncopate"
  std::vector<std::string> uris;  // URIs in the subject alternative name
  absl::Time not_before;
  absl::Time not_after;
};

// Reads the first certificate in `pem`. INVALID_ARGUMENT (reason BAD_CERTIFICATE).
absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& pem);

// OK if `key_pem` is the private key of the first certificate in `certificate_pem`. INVALID_ARGUMENT (reason BAD_KEY).
absl::Status CheckKey(const std::string& certificate_pem, const std::string& key_pem);

// The authorities that a daemon trusts. Immutable, thread-safe.
class TrustAnchors {
 public:
  enum class Use { kClient, kServer };  // the role in which the peer presents its certificate

  // Reads one or more certificates. INVALID_ARGUMENT (reason BAD_CERTIFICATE).
  static absl::StatusOr<std::shared_ptr<const TrustAnchors>> Parse(const std::string& pem);
  ~TrustAnchors();
  TrustAnchors(const TrustAnchors&) = delete;
  TrustAnchors& operator=(const TrustAnchors&) = delete;

  // OK if the first certificate of `leaf_pem` may be used for `use` at the wall time `now`. Its intermediates are the
  // rest of `leaf_pem` and `chain_pem`. Otherwise UNAUTHENTICATED naming the certificate's subject and what is wrong;
  // reason CERTIFICATE_EXPIRED, CERTIFICATE_NOT_YET_VALID, UNKNOWN_AUTHORITY or BAD_CERTIFICATE.
  absl::Status Verify(const std::string& leaf_pem, const std::string& chain_pem, Use use, absl::Time now) const;

 private:
  struct Store;
  explicit TrustAnchors(std::unique_ptr<Store> store);
  const std::unique_ptr<Store> store_;
};

}  // namespace syncopate
