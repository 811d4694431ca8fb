#include "services/auth/credentials.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/credential_file.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::auth {
namespace {

// `status` as an error about `file`.
absl::Status ErrorOfFile(const std::string& file, const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  // Time makes these errors come and go, so a supervisor may restart the process; the other errors need a person.
  const bool passing = reason == reason::kCertificateExpired || reason == reason::kCertificateNotYetValid;
  const std::string message = absl::StrCat(file, ": ", std::string(status.message()));
  return passing ? Error(absl::StatusCode::kFailedPrecondition, reason, message) : BadSecurity(message);
}

absl::Status LoadIdentity(const CredentialFiles& files, const Clock& clock, Credentials* credentials) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string pem, ReadCredentialFile(files.certificate, Secrecy::kPublic));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string key, ReadCredentialFile(files.key, Secrecy::kSecret));
  absl::StatusOr<CertificateFacts> facts = ReadCertificate(pem);
  if (!facts.ok()) return ErrorOfFile(files.certificate, facts.status());
  // This also happens while a renewal has replaced only one of the two files; the next read finds both.
  if (absl::Status fits = CheckKey(pem, key); !fits.ok()) return ErrorOfFile(files.key, fits);
  // Every daemon both calls others and is called. Checked here, a bad certificate fails this start and not a later
  // handshake with a peer.
  for (auto use : {TrustAnchors::Use::kClient, TrustAnchors::Use::kServer}) {
    absl::Status good = credentials->authorities->Verify(pem, "", use, WallTime(clock));
    if (!good.ok()) return ErrorOfFile(files.certificate, good);
  }
  absl::StatusOr<AuthRole> role = RoleOfUris(facts->uris, files.trust_domain);
  if (!role.ok()) return ErrorOfFile(files.certificate, role.status());
  if (files.role.has_value() && *role != *files.role) {
    return BadSecurity(absl::StrCat(files.certificate, ": is the certificate of a ", AuthRoleName(*role),
                                    ", and this is a ", AuthRoleName(*files.role)));
  }
  credentials->role = *role;
  credentials->certificate_pem = pem;
  credentials->certificate = *std::move(facts);
  return absl::OkStatus();
}

}  // namespace

absl::Time WallTime(const Clock& clock) {
  return absl::FromUnixMicros(static_cast<int64_t>(1e6 * clock.UnixSeconds()));
}

absl::StatusOr<std::shared_ptr<const Credentials>> Credentials::Load(const CredentialFiles& files, const Clock& clock) {
  auto credentials = std::make_shared<Credentials>();
  if (!files.authorities.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string pem, ReadCredentialFile(files.authorities, Secrecy::kPublic));
    auto authorities = TrustAnchors::Parse(pem);
    if (!authorities.ok()) return ErrorOfFile(files.authorities, authorities.status());
    credentials->authorities = *std::move(authorities);
  }
  if (!files.certificate.empty()) SYNCOPATE_RETURN_IF_ERROR(LoadIdentity(files, clock, credentials.get()));
  if (!files.tokens.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string text, ReadCredentialFile(files.tokens, Secrecy::kSecret));
    absl::StatusOr<BearerTokens> tokens = BearerTokens::Parse(text);
    if (!tokens.ok()) return ErrorOfFile(files.tokens, tokens.status());
    // The synchronizer calls no other daemon.
    const bool calls_others = files.role == AuthRole::kTrainer || files.role == AuthRole::kRollouter;
    if (calls_others && files.certificate.empty() && tokens->Find(*files.role).empty()) {
      return BadSecurity(absl::StrCat(files.tokens, ": has no token of ", AuthRoleName(*files.role),
                                      ", which this daemon must show to others"));
    }
    credentials->tokens = *std::move(tokens);
  }
  return std::shared_ptr<const Credentials>(std::move(credentials));
}

absl::StatusOr<std::shared_ptr<CredentialWatch>> CredentialWatch::Start(Options options) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto first, Credentials::Load(options.files, *options.clock));
  return std::shared_ptr<CredentialWatch>(new CredentialWatch(std::move(options), std::move(first)));
}

CredentialWatch::CredentialWatch(Options options, std::shared_ptr<const Credentials> first)
    : options_(std::move(options)), current_(std::move(first)), thread_([this] { Loop(); }) {}

CredentialWatch::~CredentialWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::shared_ptr<const Credentials> CredentialWatch::Get() const {
  MutexLock lock(&mutex_);
  return current_;
}

absl::Status CredentialWatch::health() const {
  MutexLock lock(&mutex_);
  return health_;
}

void CredentialWatch::Loop() {
  auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(Condition(&stopping), options_.reload)) return;
    }
    Reload();
  }
}

void CredentialWatch::Reload() {
  absl::StatusOr<std::shared_ptr<const Credentials>> read = Credentials::Load(options_.files, *options_.clock);
  bool renewed = false;
  bool worse = false;
  {
    MutexLock lock(&mutex_);
    // Log each new error once, not at each read.
    worse = !read.ok() && health_ != read.status();
    health_ = read.status();
    if (read.ok()) {
      // Open connections stay as they are; new handshakes use these credentials.
      renewed = current_->certificate_pem != (*read)->certificate_pem;
      current_ = *read;
    }
  }
  if (worse) {
    SYNCOPATE_LOG(kError, "security: %s; what was read before stays in use", std::string(read.status().message()));
  }
  if (renewed) {
    SYNCOPATE_LOG(kInfo, "security: new certificate of %s, valid until %s", (*read)->certificate.subject,
                  absl::FormatTime((*read)->certificate.not_after, absl::UTCTimeZone()));
  }
}

}  // namespace syncopate::auth
