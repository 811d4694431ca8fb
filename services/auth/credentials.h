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

// The files that prove the identity of a process and name the authorities that it trusts. Paths are final here: they
// contain no {role}.
struct CredentialFiles {
  std::string certificate;  // given together with `key`, or neither is
  std::string key;
  std::string authorities;            // "": no TLS
  std::string tokens;                 // "": none
  std::string trust_domain;           // the trust domain in certificates
  std::optional<AuthRole> role = {};  // the role that this process's certificate must give; nullopt: any
};

// The contents of those files, checked and usable now. Immutable.
struct Credentials {
  std::string certificate_pem;                      // "" without one
  CertificateFacts certificate;                     // meaningless without one
  std::optional<AuthRole> role = {};                // the role that this process's certificate gives
  std::shared_ptr<const TrustAnchors> authorities;  // null without TLS
  std::optional<BearerTokens> tokens = {};

  // INVALID_ARGUMENT (reason BAD_SECURITY) for an error that only an operator can correct; FAILED_PRECONDITION (reason
  // CERTIFICATE_EXPIRED or CERTIFICATE_NOT_YET_VALID) for one that a renewed certificate, or time, corrects. The
  // message names the file.
  static absl::StatusOr<std::shared_ptr<const Credentials>> Load(const CredentialFiles& files, const Clock& clock);
};

// The wall-clock time, to compare with the dates of certificates.
absl::Time WallTime(const Clock& clock);

// Credentials whose files a thread of their own reads again and again. A version that cannot be used is logged and
// ignored: the last good credentials stay in use. Thread-safe.
class CredentialWatch {
 public:
  struct Options {
    CredentialFiles files;
    absl::Duration reload = absl::Seconds(10);
    const Clock* clock = Clock::Real();  // compared with the dates of certificates
  };

  // Errors of Credentials::Load.
  static absl::StatusOr<std::shared_ptr<CredentialWatch>> Start(Options options);
  ~CredentialWatch();
  CredentialWatch(const CredentialWatch&) = delete;
  CredentialWatch& operator=(const CredentialWatch&) = delete;

  const Options& options() const { return options_; }
  std::shared_ptr<const Credentials> Get() const;
  // OK, or the error of the most recent read.
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
