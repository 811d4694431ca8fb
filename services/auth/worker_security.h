#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/auth/transport_security.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::auth {

// What a daemon of `role` shows to the worker of users' Python: a token on a socket or a loopback address, a certificate
// elsewhere. Null if neither is configured. Errors of TransportSecurity::Load.
absl::StatusOr<std::shared_ptr<const TransportSecurity>> LoadWorkerSecurity(const v1::RunConfig& config,
                                                                            const std::string& role);

}  // namespace syncopate::auth
