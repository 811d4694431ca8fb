#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/auth/transport_security.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::auth {

// What a daemon of `role` shows to workers of users' Python: a token if all of them are at sockets or loopback addresses, a
// certificate elsewhere. Null if neither is configured, and beyond loopback without TLS, where a token would be read by
// whoever listens in, and by the code that a worker runs. Errors of TransportSecurity::Load.
absl::StatusOr<std::shared_ptr<const TransportSecurity>> LoadWorkerSecurity(const v1::RunConfig& config,
                                                                            const std::string& role);

}  // namespace syncopate::auth
