#include "services/auth/call_guard.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/grpc_security_constants.h>
#include <grpc/slice.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::auth {
namespace {

constexpr char kPath[] = ":path";
constexpr char kAuthorization[] = "authorization";

std::string Text(const grpc::string_ref& text) { return std::string(text.data(), text.size()); }

std::string Text(const grpc_slice& slice) {
  return std::string(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice));
}

class Processor final : public grpc::AuthMetadataProcessor {
 public:
  explicit Processor(std::shared_ptr<const CallGuard> guard) : guard_(std::move(guard)) {}
  bool IsBlocking() const override { return false; }  // Process() only reads memory, so gRPC may call it on its threads

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* connection, OutputMetadata*,
                       OutputMetadata*) override {
    Shown shown = ShownBy(*connection);
    if (auto found = metadata.find(kAuthorization); found != metadata.end()) shown.authorization = Text(found->second);
    auto path = metadata.find(kPath);
    return guard_->JudgeEarly(shown, path == metadata.end() ? "" : Text(path->second));
  }

 private:
  const std::shared_ptr<const CallGuard> guard_;
};

// gRPC's own insecure server credentials abort if they are given a metadata processor, so this class makes them through
// the C interface, which accepts one.
class GuardedPlaintext final : public grpc::ServerCredentials {
 public:
  explicit GuardedPlaintext(std::shared_ptr<const CallGuard> guard) : guard_(std::move(guard)) {}
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    SYNCOPATE_CHECK(false);  // the guard is set already
  }

 private:
  using Guard = std::shared_ptr<const CallGuard>;

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    grpc_server_credentials* credentials = grpc_insecure_server_credentials_create();
    // The copy of the shared pointer belongs to gRPC, which releases it with Destroy().
    grpc_server_credentials_set_auth_metadata_processor(credentials, {&Process, &Destroy, new Guard(guard_)});
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  static void Process(void* state, grpc_auth_context*, const grpc_metadata* metadata, size_t count,
                      grpc_process_auth_metadata_done_cb done, void* call) {
    Shown shown;
    std::string path;
    for (size_t i = 0; i < count; ++i) {
      const std::string key = Text(metadata[i].key);
      if (key == kPath) path = Text(metadata[i].value);
      if (key == kAuthorization) shown.authorization = Text(metadata[i].value);
    }
    const grpc::Status status = (*static_cast<Guard*>(state))->JudgeEarly(shown, path);
    done(call, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.error_code()),
         status.ok() ? nullptr : status.error_message().c_str());
  }
  static void Destroy(void* state) { delete static_cast<Guard*>(state); }

  const Guard guard_;
};

}  // namespace

CallGuard::CallGuard(std::shared_ptr<CredentialWatch> watch, std::shared_ptr<RefusalLog> refusals,
                     std::set<std::string> judged_later)
    : watch_(std::move(watch)), refusals_(std::move(refusals)), judged_later_(std::move(judged_later)) {}

absl::StatusOr<Caller> CallGuard::Identify(const Shown& shown) const {
  const std::shared_ptr<const Credentials> credentials = watch_->Get();
  // The credentials of this moment: files may be renewed while the server runs.
  const BearerTokens* tokens = credentials->tokens.has_value() ? &*credentials->tokens : nullptr;
  return Authenticate(shown, watch_->options().files.trust_domain, tokens);
}

absl::Status CallGuard::Refuse(const absl::StatusOr<Caller>& caller, const std::string& path,
                               const absl::Status& why) const {
  refusals_->Add(absl::StrCat("a call of ", caller.ok() ? caller->name : "a stranger", " to ", path, ": ",
                              std::string(why.message()), " (", ErrorReason(why), ")"));
  return why;
}

absl::Status CallGuard::Judge(const Shown& shown, const std::string& path) const {
  const absl::StatusOr<Caller> caller = Identify(shown);
  const absl::Status verdict = caller.ok() ? Authorize(*caller, path) : caller.status();
  return verdict.ok() ? verdict : Refuse(caller, path, verdict);
}

grpc::Status CallGuard::JudgeEarly(const Shown& shown, const std::string& path) const {
  const absl::StatusOr<Caller> caller = Identify(shown);
  if (caller.ok() && judged_later_.count(path) > 0) return grpc::Status::OK;
  const absl::Status verdict = caller.ok() ? Authorize(*caller, path) : caller.status();
  if (verdict.ok()) return grpc::Status::OK;
  Refuse(caller, path, verdict).IgnoreError();
  return grpc::Status(static_cast<grpc::StatusCode>(verdict.code()),
                      absl::StrCat(std::string(verdict.message()), " (", ErrorReason(verdict), ")"));
}

Shown ShownBy(const grpc::AuthContext& connection) {
  Shown shown;
  shown.certificate = !connection.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME).empty();
  for (const grpc::string_ref& uri : connection.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    shown.uris.push_back(Text(uri));
  }
  return shown;
}

std::shared_ptr<grpc::AuthMetadataProcessor> MakeProcessor(std::shared_ptr<const CallGuard> guard) {
  return std::make_shared<Processor>(std::move(guard));
}

std::shared_ptr<grpc::ServerCredentials> PlaintextServerCredentials(std::shared_ptr<const CallGuard> guard) {
  return std::make_shared<GuardedPlaintext>(std::move(guard));
}

}  // namespace syncopate::auth
