#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/auth/transport_security.h"
#include "tools/ctl/daemons.h"

namespace syncopate::ctl {

// The credentials that a command line was told to show to daemons. All may be "".
struct TargetSecurityFlags {
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;
  std::string token_file;
  std::string trust_domain;  // "": "syncopate"

  bool empty() const { return tls_cert.empty() && tls_key.empty() && tls_ca.empty() && token_file.empty(); }
};

// The security of the flags if any is set; else that of the configuration in the run directory, where {role} is read as
// "admin"; null (plaintext) if that has none, or if there is only a target. Errors of TransportSecurity::Load, and of
// reading the configuration.
absl::StatusOr<std::shared_ptr<const auth::TransportSecurity>> FindTargetSecurity(const TargetSecurityFlags& flags,
                                                                                  const DaemonOptions& daemons);

}  // namespace syncopate::ctl
