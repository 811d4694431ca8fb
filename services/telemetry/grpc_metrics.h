#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "services/telemetry/metric_names.h"

namespace syncopate::telemetry {

// grpc_server_started_total, grpc_server_handled_total and grpc_server_handling_seconds, with the names and labels of
// go-grpc-prometheus. Counts the methods of the given services; all others (health, reflection) are counted together as
// grpc_service="other", grpc_method="other".
class GrpcServerMetrics {
 public:
  // `services`: full names, e.g. "syncopate.v1.RolloutService"; their descriptors must be linked in.
  GrpcServerMetrics(prometheus::Registry& registry, const std::vector<std::string>& services);
  GrpcServerMetrics(const GrpcServerMetrics&) = delete;
  GrpcServerMetrics& operator=(const GrpcServerMetrics&) = delete;

  // For Server::Options::interceptors. This object must outlive the server.
  std::function<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>()> InterceptorFactory();

  // One method's counters. `handled` has one counter per canonical code; a call that never sent a status counts as
  // CANCELLED.
  struct Method {
    prometheus::Counter* started = nullptr;
    std::vector<prometheus::Counter*> handled;
    prometheus::Histogram* seconds = nullptr;
  };
  // `path` is "/package.Service/Method".
  const Method& Find(const std::string& path) const;

 private:
  void AddMethod(const std::string& path, const std::string& service, const std::string& method,
                 const std::string& type);

  prometheus::Family<prometheus::Counter>& started_;
  prometheus::Family<prometheus::Counter>& handled_;
  prometheus::Family<prometheus::Histogram>& seconds_;
  std::map<std::string, Method> methods_;  // keyed by path; "" is all other methods. Not changed after construction
};

}  // namespace syncopate::telemetry
