#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <functional>
#include <memory>
#include <string>

#include "services/auth/transport_security.h"

namespace syncopate::auth {

// One log line for each call that acts (permissions.h) and was let through, written when the call has ended:
//
//   audit: /syncopate.v1.TrainerService/Pause by spiffe://syncopate/role/admin (admin) from ipv4:10.0.0.7:40112,
//   request "r-17": OK
//
// Refused calls are logged where they are refused (refusal_log.h). Audit lines contain no payload and no token.
using AuditSink = std::function<void(const std::string& line)>;

// The sink of daemons: the log.
AuditSink LogAudit();

// Interceptors for Server::Options::interceptors. `security` is the server's own; null if the server authenticates
// nobody. `sink` is called on gRPC's threads and must not block.
std::function<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>()> AuditInterceptors(
    std::shared_ptr<const TransportSecurity> security, AuditSink sink = LogAudit());

}  // namespace syncopate::auth
