#include "services/auth/peer_verifier.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::auth {
namespace {

std::string MakeCopy(const grpc::string_ref& text) { return std::string(text.data(), text.size()); }

}  // namespace

absl::Status PeerVerifier::Judge(const Options& options, const std::string& certificate, const std::string& chain) {
  const std::shared_ptr<const Credentials> credentials = options.watch->Get();
  if (certificate.empty()) {
    const bool server_takes_tokens = options.use == TrustAnchors::Use::kClient && credentials->tokens.has_value();
    if (server_takes_tokens) return absl::OkStatus();  // each of its calls needs a token
    return Error(absl::StatusCode::kUnauthenticated, "NO_CERTIFICATE", "no certificate was shown");
  }
  SYNCOPATE_RETURN_IF_ERROR(
      credentials->authorities->Verify(certificate, chain, options.use, WallTime(*options.watch->options().clock)));
  SYNCOPATE_ASSIGN_OR_RETURN(CertificateFacts facts, ReadCertificate(certificate));
  SYNCOPATE_ASSIGN_OR_RETURN(AuthRole role, RoleOfUris(facts.uris, options.trust_domain));
  if (options.roles.Contains(role)) return absl::OkStatus();
  return Error(absl::StatusCode::kPermissionDenied, "WRONG_ROLE",
               absl::StrCat("the certificate of ", facts.subject, " is that of a ", AuthRoleName(role), ", not of a ",
                            options.roles.ToString()));
}

bool PeerVerifier::Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
                          std::function<void(grpc::Status)>, grpc::Status* sync_status) {
  const absl::Status verdict =
      Judge(options_, MakeCopy(request->peer_cert()), MakeCopy(request->peer_cert_full_chain()));
  if (!verdict.ok()) {
    const bool is_client = options_.use == TrustAnchors::Use::kClient;
    const std::string message = absl::StrCat(std::string(verdict.message()), " (", ErrorReason(verdict), ")");
    const std::string whom = is_client ? "a client" : absl::StrCat("the server ", MakeCopy(request->target_name()));
    options_.refusals->Add(absl::StrCat("a connection of ", whom, ": ", message));
    *sync_status = grpc::Status(static_cast<grpc::StatusCode>(verdict.code()), message);
  }
  return true;
}

}  // namespace syncopate::auth
