#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/certificate.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "services/auth/tokens.h"

namespace syncopate::auth {

// Which files say who a process is and whom it trusts. Paths are final here: no {role} in them.
struct CredentialFiles {
  std::string certificate;  // with `key`, or neither
  std::string key;
  std::string authorities;            // "" is no TLS
  std::string tokens;                 // "" is none
  std::string trust_domain;           // of certificates
  std::optional<AuthRole> role = {};  // that the own certificate must give; nothing: any
};

// Contents of those files, judged: usable now. Immutable.
struct Credentials {
  std::string certificate_pem;                      // "" without one
  CertificateFacts certificate;                     // meaningless without one
  std::optional<AuthRole> role = {};                // what the own certificate gives
  std::shared_ptr<const TrustAnchors> authorities;  // null without TLS
  std::optional<BearerTokens> tokens = {};

  // INVALID_ARGUMENT (reason BAD_SECURITY) for what only an operator can mend; FAILED_PRECONDITION (reason
  // CERTIFICATE_EXPIRED or CERTIFICATE_NOT_YET_VALID) for what a renewed certificate, or time, mends. Names the file.
  static absl::StatusOr<std::shared_ptr<const Credentials>> Load(const CredentialFiles& files, const Clock& clock);
};

// The wall time as certificates want it.
absl::Time WallTime(const Clock& clock);

// Credentials that are read again by a thread of its own. What cannot be used is said in the log and not taken: the
// last good ones stay. Thread-safe.
class CredentialWatch {
 public:
  struct Options {
    CredentialFiles files;
    absl::Duration reload = absl::Seconds(10);
    const Clock* clock = Clock::Real();  // of certificates' dates
  };

  // Errors of Credentials::Load.
  static absl::StatusOr<std::shared_ptr<CredentialWatch>> Start(Options options);
  ~CredentialWatch();
  CredentialWatch(const CredentialWatch&) = delete;
  CredentialWatch& operator=(const CredentialWatch&) = delete;

  const Options& options() const { return options_; }
  std::shared_ptr<const Credentials> Get() const;
  // What the last look at the files found.
  absl::Status health() const;

 private:
  CredentialWatch(Options options, std::shared_ptr<const Credentials> first);
  void Loop();
  void Reload();

  const Options options_;
  mutable Mutex mutex_;
  std::shared_ptr<const Credentials> current_ ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncopate::auth
