#include "services/auth/audit.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "services/auth/permissions.h"

namespace syncopate::auth {
namespace {

using grpc::experimental::InterceptionHookPoints;

constexpr size_t kMaxRequestIdBytes = 64;  // the peer chooses its length

std::string GetRequestId(const google::protobuf::Message& request) {
  const google::protobuf::FieldDescriptor* field = request.GetDescriptor()->FindFieldByName("request_id");
  if (field == nullptr || field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING) return "";
  return absl::CEscape(request.GetReflection()->GetString(request, field).substr(0, kMaxRequestIdBytes));
}

// Lives as long as its call; logs the call when it ends.
class AuditInterceptor final : public grpc::experimental::Interceptor {
 public:
  AuditInterceptor(grpc::experimental::ServerRpcInfo* call, const TransportSecurity* security, const AuditSink& sink)
      : call_(call), security_(security), sink_(sink), path_(call->method()) {}

  ~AuditInterceptor() override {
    if (!let_through_) return;
    const std::string request = request_id_.empty() ? "" : absl::StrCat(", request \"", request_id_, "\"");
    sink_(absl::StrCat(path_, " by ", who_, request, ": ", absl::StatusCodeToString(code_)));
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) Identify();
    const bool unary = call_->type() == grpc::experimental::ServerRpcInfo::Type::UNARY;
    if (unary && batch->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      // gRPC passes the request as an untyped pointer; services of protobuf messages get a google::protobuf::Message.
      const auto* request = static_cast<const google::protobuf::Message*>(batch->GetRecvMessage());
      if (request != nullptr) request_id_ = GetRequestId(*request);
    }
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      code_ = static_cast<absl::StatusCode>(batch->GetSendStatus().error_code());
    }
    batch->Proceed();
  }

 private:
  void Identify() {
    const std::string from = absl::StrCat(" from ", call_->server_context()->peer());
    if (security_ == nullptr) {
      who_ = absl::StrCat("anybody", from);
      return;
    }
    absl::StatusOr<Caller> caller = security_->GetCaller(*call_->server_context());
    let_through_ = !caller.ok() || Authorize(*caller, path_).ok();
    who_ = caller.ok() ? absl::StrCat(caller->name, " (", AuthRoleName(caller->role), ")", from)
                       : absl::StrCat("a token that was withdrawn", from);
  }

  grpc::experimental::ServerRpcInfo* const call_;
  const TransportSecurity* const security_;
  const AuditSink& sink_;
  const std::string path_;
  std::string who_ = "a peer that went away";
  std::string request_id_;
  absl::StatusCode code_ = absl::StatusCode::kCancelled;
  bool let_through_ = true;
};

class AuditFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  AuditFactory(std::shared_ptr<const TransportSecurity> security, AuditSink sink)
      : security_(std::move(security)), sink_(std::move(sink)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* call) override {
    const Permission* permission = FindPermission(call->method());
    const bool acts = permission != nullptr && permission->effect == CallEffect::kActs;
    return acts ? new AuditInterceptor(call, security_.get(), sink_) : nullptr;  // gRPC owns it
  }

 private:
  const std::shared_ptr<const TransportSecurity> security_;
  const AuditSink sink_;
};

}  // namespace

AuditSink LogAudit() {
  return [](const std::string& line) { SYNCOPATE_LOG(kInfo, "audit: %s", line); };
}

std::function<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>()> AuditInterceptors(
    std::shared_ptr<const TransportSecurity> security, AuditSink sink) {
  return [security = std::move(security), sink = std::move(sink)] {
    return std::make_unique<AuditFactory>(security, sink);
  };
}

}  // namespace syncopate::auth
