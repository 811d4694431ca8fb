#include "services/auth/transport_security.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/credential_file.h"
#include "base/status.h"
#include "services/auth/call_guard.h"
#include "services/auth/peer_verifier.h"
#include "services/auth/rank_sockets.h"
#include "services/config/duration.h"

namespace syncopate::auth {
namespace {

constexpr AuthRoles kDaemons = {AuthRole::kTrainer, AuthRole::kRollouter, AuthRole::kSynchronizer};
constexpr AuthRoles kAnybody = {AuthRole::kTrainer, AuthRole::kRollouter, AuthRole::kSynchronizer, AuthRole::kAdmin,
                                AuthRole::kViewer,  AuthRole::kClient,    AuthRole::kEnvironment};

// Adds the token to each call of a channel.
class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(std::string token) : token_(std::move(token)) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      batch->GetSendInitialMetadata()->emplace("authorization", absl::StrCat("Bearer ", token_));
    }
    batch->Proceed();
  }

 private:
  const std::string token_;
};

class TokenFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  TokenFactory(AuthRole role, std::shared_ptr<CredentialWatch> watch) : role_(role), watch_(std::move(watch)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
    const std::shared_ptr<const Credentials> credentials = watch_->Get();
    // Looked up for each call, so that a renewed token file takes effect on channels that are open.
    const std::string token = credentials->tokens.has_value() ? credentials->tokens->Find(role_) : "";
    return token.empty() ? nullptr : new TokenInterceptor(token);  // gRPC owns it
  }

 private:
  const AuthRole role_;
  const std::shared_ptr<CredentialWatch> watch_;
};

absl::StatusOr<CredentialFiles> GetFiles(const TransportSecurity::Options& options) {
  const bool daemon = !options.role.empty();  // else a person's command line
  const std::string role = daemon ? options.role : AuthRoleName(AuthRole::kAdmin);
  auto path = [&role](const std::string& with) { return absl::StrReplaceAll(with, {{"{role}", role}}); };
  CredentialFiles files = {path(options.tls_cert), path(options.tls_key), path(options.tls_ca),
                           path(options.token_file), options.trust_domain};
  if (files.certificate.empty() != files.key.empty()) return BadSecurity("tls_cert and tls_key must be set together");
  if (!files.certificate.empty() && files.authorities.empty()) return BadSecurity("tls_cert needs tls_ca");
  // A client may verify servers without a certificate of its own; a daemon is a server too and needs one.
  if (daemon && files.certificate.empty() && !files.authorities.empty())
    return BadSecurity("tls_ca needs tls_cert, tls_key");
  if (daemon) {
    SYNCOPATE_ASSIGN_OR_RETURN(files.role, ParseAuthRole(role));
  }
  return files;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TransportSecurity>> TransportSecurity::Load(Options options) {
  SYNCOPATE_ASSIGN_OR_RETURN(CredentialFiles files, GetFiles(options));
  if (files.authorities.empty() && files.tokens.empty()) return std::shared_ptr<const TransportSecurity>();
  SYNCOPATE_ASSIGN_OR_RETURN(auto watch, CredentialWatch::Start({files, options.tls_reload, options.clock}));
  return std::shared_ptr<const TransportSecurity>(new TransportSecurity(std::move(options), std::move(watch)));
}

absl::StatusOr<std::shared_ptr<const TransportSecurity>> TransportSecurity::Load(const v1::SecuritySection& section,
                                                                                 const std::string& role) {
  return Load({.role = role,
               .tls_cert = section.tls_cert(),
               .tls_key = section.tls_key(),
               .tls_ca = section.tls_ca(),
               .tls_reload = config::CheckedDuration(section.tls_reload()),
               .trust_domain = section.trust_domain(),
               .token_file = section.token_file()});
}

TransportSecurity::TransportSecurity(Options options, std::shared_ptr<CredentialWatch> watch)
    : options_(std::move(options)), watch_(std::move(watch)), refusals_(std::make_shared<RefusalLog>()) {
  const CredentialFiles& files = watch_->options().files;
  if (files.certificate.empty()) return;
  identity_ = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.certificate, static_cast<unsigned>(absl::ToInt64Seconds(options_.tls_reload)));
}

std::optional<absl::Time> TransportSecurity::certificate_expiry() const {
  const std::shared_ptr<const Credentials> credentials = watch_->Get();
  if (credentials->certificate_pem.empty()) return std::nullopt;
  return credentials->certificate.not_after;
}

std::shared_ptr<grpc::ServerCredentials> TransportSecurity::ServerCredentials(
    std::set<std::string> judged_later) const {
  auto guard = std::make_shared<CallGuard>(watch_, refusals_, std::move(judged_later));
  if (!encrypted()) return PlaintextServerCredentials(std::move(guard));
  grpc::experimental::TlsServerCredentialsOptions tls(identity_);
  tls.watch_identity_key_cert_pairs();
  tls.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);  // PeerVerifier verifies and logs why
  tls.set_certificate_verifier(grpc::experimental::ExternalCertificateVerifier::Create<PeerVerifier>(
      PeerVerifier::Options{TrustAnchors::Use::kClient, options_.trust_domain, kAnybody, watch_, refusals_}));
  auto credentials = grpc::experimental::TlsServerCredentials(tls);
  credentials->SetAuthMetadataProcessor(MakeProcessor(std::move(guard)));
  return credentials;
}

std::shared_ptr<grpc::ChannelCredentials> TransportSecurity::ChannelCredentials(const std::string& peer_role) const {
  if (!encrypted()) return grpc::InsecureChannelCredentials();
  absl::StatusOr<AuthRole> role = ParseAuthRole(peer_role);
  grpc::experimental::TlsChannelCredentialsOptions tls;
  if (identity_ != nullptr) {
    tls.set_certificate_provider(identity_);
    tls.watch_identity_key_cert_pairs();
  }
  tls.set_verify_server_certs(false);  // PeerVerifier verifies and logs why
  tls.set_check_call_host(false);      // a server is identified by its role, not by the name that was dialled
  tls.set_certificate_verifier(grpc::experimental::ExternalCertificateVerifier::Create<PeerVerifier>(
      PeerVerifier::Options{TrustAnchors::Use::kServer, options_.trust_domain, role.ok() ? AuthRoles{*role} : kDaemons,
                            watch_, refusals_}));
  return grpc::experimental::TlsCredentials(tls);
}

std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
TransportSecurity::ClientInterceptors() const {
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> factories;
  if (options_.token_file.empty()) return factories;
  const AuthRole role = watch_->options().files.role.value_or(AuthRole::kAdmin);
  factories.push_back(std::make_unique<TokenFactory>(role, watch_));
  return factories;
}

SocketSecurity TransportSecurity::RankSockets(AuthRole role) const {
  if (identity_ == nullptr) return nullptr;
  return MakeRankSockets({.role = role, .trust_domain = options_.trust_domain, .watch = watch_, .refusals = refusals_});
}

Shown TransportSecurity::ShownIn(const grpc::ServerContextBase& context) {
  Shown shown = ShownBy(*context.auth_context());
  auto authorization = context.client_metadata().find("authorization");
  if (authorization != context.client_metadata().end()) {
    shown.authorization.assign(authorization->second.data(), authorization->second.size());
  }
  return shown;
}

absl::StatusOr<Caller> TransportSecurity::GetCaller(const grpc::ServerContextBase& context) const {
  const std::shared_ptr<const Credentials> credentials = watch_->Get();
  return Authenticate(ShownIn(context), options_.trust_domain,
                      credentials->tokens.has_value() ? &*credentials->tokens : nullptr);
}

absl::Status TransportSecurity::Judge(const grpc::ServerContextBase& context, const std::string& path) const {
  return CallGuard(watch_, refusals_).Judge(ShownIn(context), path);
}

absl::Status TransportSecurity::JudgeEndpoint(const std::string& authorization) const {
  return CallGuard(watch_, refusals_).Judge({.authorization = authorization}, "/syncopate.v1.RolloutService/Generate");
}

HelloCaller::HelloCaller(const TransportSecurity* security, const grpc::ServerContextBase& context) {
  if (security != nullptr) caller_ = security->GetCaller(context);
}

absl::Status HelloCaller::CheckIs(const std::string& role) const {
  if (!caller_.has_value()) return absl::OkStatus();
  return caller_->ok() ? auth::CheckIs(**caller_, role) : caller_->status();
}

}  // namespace syncopate::auth
