#pragma once

#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "services/auth/transport_security.h"

namespace syncopate::rpc {

// The services of a server behind the table of who may call what (services/auth/permissions.h), so that a denial
// carries its ErrorInfo. gRPC's own hook for this, an AuthMetadataProcessor, ends a call with a code and a message and
// nothing else. Here a service of the same name and methods stands before each one: it asks TransportSecurity::Judge()
// and runs the method of the real service, or ends the call.
//
// Knows callback services of package syncopate.v1; any other stays as it is, and its denials are the processor's:
// nothing is let through by being unknown. Must outlive the server that serves it. Thread-safe.
class GuardedServices {
 public:
  // `services` are borrowed.
  GuardedServices(std::shared_ptr<const auth::TransportSecurity> security, const std::vector<grpc::Service*>& services);
  ~GuardedServices();
  GuardedServices(const GuardedServices&) = delete;
  GuardedServices& operator=(const GuardedServices&) = delete;

  // To be registered in place of those that were given.
  const std::vector<grpc::Service*>& services() const { return services_; }
  // "/package.Service/Method": the calls that are judged here, for TransportSecurity::ServerCredentials().
  const std::set<std::string>& calls() const { return calls_; }

  // Belongs to the server's interceptors: it puts the denial in the place of the status that a method ends with which
  // was not run.
  static std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors();

 private:
  class Guarded;

  std::vector<std::unique_ptr<Guarded>> guarded_;
  std::vector<grpc::Service*> services_;
  std::set<std::string> calls_;
};

}  // namespace syncopate::rpc
