#include "services/auth/worker_security.h"

#include <algorithm>
#include <vector>

#include "base/host_port.h"
#include "services/config/duration.h"
#include "services/config/rules.h"

namespace syncopate::auth {

absl::StatusOr<std::shared_ptr<const TransportSecurity>> LoadWorkerSecurity(const v1::RunConfig& config,
                                                                            const std::string& role) {
  const v1::SecuritySection& security = config.security();
  // No token over TLS: a worker on another host would see it, and could show it to the daemons as a rollouter.
  if (config::WorkerUsesTls(config)) {
    return TransportSecurity::Load({.role = role,
                                    .tls_cert = security.tls_cert(),
                                    .tls_key = security.tls_key(),
                                    .tls_ca = security.tls_ca(),
                                    .tls_reload = config::CheckedDuration(security.tls_reload()),
                                    .trust_domain = security.trust_domain()});
  }
  const std::vector<std::string> workers = config::WorkerAddresses(config);
  const bool is_local = std::all_of(workers.begin(), workers.end(), [](const std::string& address) {
    const auto place = ParseHostPort(address);
    return !place.ok() || place->IsLoopback();
  });
  if (!is_local) return nullptr;
  return TransportSecurity::Load({.role = role,
                                  .tls_reload = config::CheckedDuration(security.tls_reload()),
                                  .token_file = security.token_file()});
}

}  // namespace syncopate::auth
