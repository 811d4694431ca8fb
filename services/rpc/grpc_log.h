#pragma once

namespace syncopate::rpc {

// Puts what gRPC itself has to say (errors, unless GRPC_VERBOSITY asks for more) into the process's log instead of
// straight to standard error. Called by whatever makes a server or a channel; idempotent.
void RouteGrpcLog();

}  // namespace syncopate::rpc
