#pragma once

#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "services/auth/transport_security.h"

namespace syncopate::rpc {

// The services of a server behind the table of permissions (services/auth/permissions.h), so that a denial carries its
// ErrorInfo. gRPC's own hook, an AuthMetadataProcessor, can end a call only with a code and a message. Here a service
// with the same name and methods stands before each real one: it asks TransportSecurity::Judge() and then runs the
// method of the real service, or ends the call.
//
// Knows callback services of package syncopate.v1. Any other service is left as it is, and the processor judges its
// calls: an unknown service is not let through. Must outlive the server that serves it. Thread-safe.
class GuardedServices {
 public:
  // `services` are borrowed.
  GuardedServices(std::shared_ptr<const auth::TransportSecurity> security, const std::vector<grpc::Service*>& services);
  ~GuardedServices();
  GuardedServices(const GuardedServices&) = delete;
  GuardedServices& operator=(const GuardedServices&) = delete;

  // The services to register instead of the given ones.
  const std::vector<grpc::Service*>& services() const { return services_; }
  // The calls that are judged here, as "/package.Service/Method": the argument of
  // TransportSecurity::ServerCredentials().
  const std::set<std::string>& calls() const { return calls_; }

  // A factory for the server's interceptors. A denied method is not run; the interceptor replaces the status of its
  // call with the denial.
  static std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors();

 private:
  class Guarded;

  std::vector<std::unique_ptr<Guarded>> guarded_;
  std::vector<grpc::Service*> services_;
  std::set<std::string> calls_;
};

}  // namespace syncopate::rpc
