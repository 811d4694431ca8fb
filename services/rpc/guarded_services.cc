#include "services/rpc/guarded_services.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/server_context.h>

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "google/rpc/status.pb.h"
#include "services/rpc/status.h"
#include "syncopate/v1/environment.grpc.pb.h"
#include "syncopate/v1/rank.grpc.pb.h"
#include "syncopate/v1/replica.grpc.pb.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "syncopate/v1/trajectory.grpc.pb.h"
#include "syncopate/v1/weights.grpc.pb.h"

namespace syncopate::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::internal::MethodHandler;
using grpc::internal::RpcMethod;

// The key of a denial in the trailing metadata, on its way from handler to interceptor: it is never sent to the peer.
constexpr char kDenied[] = "syncopate-denied-bin";

// Runs another service's handler, unless the table denies the call.
class GuardedMethod final : public MethodHandler {
 public:
  GuardedMethod(std::string path, std::shared_ptr<const auth::TransportSecurity> security, MethodHandler* inner)
      : path_(std::move(path)), security_(std::move(security)), inner_(inner) {}

  void RunHandler(const HandlerParameter& call) override {
    const absl::Status verdict = security_->Judge(*call.server_context, path_);
    if (verdict.ok()) return inner_->RunHandler(call);
    call.server_context->AddTrailingMetadata(kDenied, ToProto(verdict).SerializeAsString());
    // A handler whose request could not be read does not run its method: it ends the call with UNIMPLEMENTED and frees
    // the request.
    inner_->RunHandler(
        {call.call, call.server_context, call.request, ToGrpc(verdict), call.internal_data, call.call_requester});
  }

  void* Deserialize(grpc_call* call, grpc_byte_buffer* request, grpc::Status* status, void** data) override {
    return inner_->Deserialize(call, request, status, data);
  }

 private:
  const std::string path_;
  const std::shared_ptr<const auth::TransportSecurity> security_;
  MethodHandler* const inner_;  // of the real service
};

// Replaces the status that the handler set by the denial.
class DenialInterceptor final : public grpc::experimental::Interceptor {
 public:
  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) Replace(batch);
    batch->Proceed();
  }

 private:
  static void Replace(grpc::experimental::InterceptorBatchMethods* batch) {
    auto* const trailers = batch->GetSendTrailingMetadata();
    if (trailers == nullptr) return;
    const auto denied = trailers->find(kDenied);
    if (denied == trailers->end()) return;
    google::rpc::Status verdict;
    SYNCOPATE_CHECK(verdict.ParseFromString(denied->second));
    trailers->erase(denied);
    batch->ModifySendStatus(ToGrpc(FromProto(verdict)));
  }
};

class DenialFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo*) override {
    return new DenialInterceptor();  // gRPC owns it
  }
};

// gRPC's base class does not reveal a service's name, so this compares types. `Message` is any message of the service's
// proto file: naming it links the file's descriptor.
template <typename Known, typename Message>
const google::protobuf::ServiceDescriptor* DescriptorIf(grpc::Service* service) {
  if (dynamic_cast<typename Known::Service*>(service) == nullptr) return nullptr;
  const google::protobuf::FileDescriptor& file = *Message::descriptor()->file();
  for (int i = 0; i < file.service_count(); ++i) {
    if (file.service(i)->full_name() == Known::service_full_name()) return file.service(i);
  }
  return nullptr;
}

const google::protobuf::ServiceDescriptor* DescriptorFor(grpc::Service* service) {
  for (auto* look :
       {&DescriptorIf<v1::SynchronizerService, v1::JoinRequest>,
        &DescriptorIf<v1::TrajectoryService, v1::ExchangeRequest>,
        &DescriptorIf<v1::TrainerService, v1::GetModelRequest>, &DescriptorIf<v1::RolloutService, v1::GenerateRequest>,
        &DescriptorIf<v1::RankService, v1::AttendRequest>,
        &DescriptorIf<v1::ReplicaService, v1::ReplicaServiceAttendRequest>,
        &DescriptorIf<v1::WeightService, v1::FetchWeightsRequest>,
        &DescriptorIf<v1::EnvironmentService, v1::DescribeRequest>}) {
    if (const auto* found = look(service); found != nullptr) return found;
  }
  return nullptr;
}

RpcMethod::RpcType GetType(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming()) {
    return method.server_streaming() ? RpcMethod::BIDI_STREAMING : RpcMethod::CLIENT_STREAMING;
  }
  return method.server_streaming() ? RpcMethod::SERVER_STREAMING : RpcMethod::NORMAL_RPC;
}

// Generated services register handlers with this protected member of their base.
struct HandlersOf : grpc::Service {
  using grpc::Service::GetHandler;
};

}  // namespace

class GuardedServices::Guarded final : public grpc::Service {
 public:
  Guarded(const google::protobuf::ServiceDescriptor& descriptor, grpc::Service* service,
          const std::shared_ptr<const auth::TransportSecurity>& security) {
    for (int i = 0; i < descriptor.method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *descriptor.method(i);
      paths_.push_back(absl::StrCat("/", descriptor.full_name(), "/", method.name()));
      AddMethod(new grpc::internal::RpcServiceMethod(paths_.back().c_str(), GetType(method), nullptr));
      // Generated code numbers methods as the descriptor does.
      MarkMethodCallback(i, new GuardedMethod(paths_.back(), security, (service->*&HandlersOf::GetHandler)(i)));
    }
  }

  const std::deque<std::string>& paths() const { return paths_; }

 private:
  std::deque<std::string> paths_;  // gRPC keeps pointers to these strings
};

GuardedServices::GuardedServices(std::shared_ptr<const auth::TransportSecurity> security,
                                 const std::vector<grpc::Service*>& services) {
  for (grpc::Service* service : services) {
    // Handlers of the synchronous interface run on other threads and cannot be wrapped like this.
    const google::protobuf::ServiceDescriptor* const descriptor =
        service->has_synchronous_methods() ? nullptr : DescriptorFor(service);
    if (descriptor == nullptr) {
      services_.push_back(service);
      continue;
    }
    guarded_.push_back(std::make_unique<Guarded>(*descriptor, service, security));
    services_.push_back(guarded_.back().get());
    calls_.insert(guarded_.back()->paths().begin(), guarded_.back()->paths().end());
  }
}

GuardedServices::~GuardedServices() = default;

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> GuardedServices::Interceptors() {
  return std::make_unique<DenialFactory>();
}

}  // namespace syncopate::rpc
