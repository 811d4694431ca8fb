#include "services/telemetry/grpc_metrics.h"

#include <google/protobuf/descriptor.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace syncopate::telemetry {
namespace {

constexpr int kCodes = 17;
constexpr std::array<const char*, kCodes> kCodeNames = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

const prometheus::Histogram::BucketBoundaries kSeconds = {.0005, .001, .0025, .005, .01, .025, .05,
                                                          .1,    .25,  .5,    1,    2.5, 5,    10};

std::string TypeName(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming() && method.server_streaming()) return "bidi_stream";
  if (method.server_streaming()) return "server_stream";
  return method.client_streaming() ? "client_stream" : "unary";
}

// Lives as long as its call.
class CallInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit CallInterceptor(const GrpcServerMetrics::Method& method) : method_(method), started_(Clock::Real()->Now()) {
    method_.started->Increment();
  }
  ~CallInterceptor() override {
    method_.handled[static_cast<size_t>(code_)]->Increment();
    method_.seconds->Observe(absl::ToDoubleSeconds(Clock::Real()->Now() - started_));
  }
  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      int code = batch->GetSendStatus().error_code();
      code_ = code >= 0 && code < kCodes ? code : static_cast<int>(grpc::StatusCode::UNKNOWN);
    }
    batch->Proceed();
  }

 private:
  const GrpcServerMetrics::Method& method_;
  const absl::Time started_;
  int code_ = grpc::StatusCode::CANCELLED;  // the code of a call that ends before its handler sends a status
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(const GrpcServerMetrics* metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new CallInterceptor(metrics_->Find(info->method()));  // gRPC owns it
  }

 private:
  const GrpcServerMetrics* metrics_;
};

}  // namespace

GrpcServerMetrics::GrpcServerMetrics(prometheus::Registry& registry, const std::vector<std::string>& services)
    : started_(
          prometheus::BuildCounter().Name("grpc_server_started_total").Help("Calls that began").Register(registry)),
      handled_(prometheus::BuildCounter()
                   .Name("grpc_server_handled_total")
                   .Help("Calls that ended, by code")
                   .Register(registry)),
      seconds_(prometheus::BuildHistogram()
                   .Name("grpc_server_handling_seconds")
                   .Help("How long calls took")
                   .Register(registry)) {
  // Paths come from clients: calls of unknown methods share one series, so that a client cannot add any.
  AddMethod("", "other", "other", "other");
  for (const std::string& name : services) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    SYNCOPATE_CHECK(service != nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *service->method(i);
      AddMethod(absl::StrCat("/", name, "/", method.name()), name, method.name(), TypeName(method));
    }
  }
}

void GrpcServerMetrics::AddMethod(const std::string& path, const std::string& service, const std::string& method,
                                  const std::string& type) {
  prometheus::Labels labels = {{"grpc_service", service}, {"grpc_method", method}, {"grpc_type", type}};
  Method added;
  added.started = &started_.Add(labels);
  added.seconds = &seconds_.Add(labels, kSeconds);
  for (const char* code : kCodeNames) {
    prometheus::Labels with_code = labels;
    with_code["grpc_code"] = code;
    added.handled.push_back(&handled_.Add(with_code));
  }
  methods_[path] = std::move(added);
}

std::function<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>()>
GrpcServerMetrics::InterceptorFactory() {
  return [this] { return std::make_unique<Factory>(this); };
}

const GrpcServerMetrics::Method& GrpcServerMetrics::Find(const std::string& path) const {
  auto found = methods_.find(path);
  return found == methods_.end() ? methods_.at("") : found->second;
}

}  // namespace syncopate::telemetry
