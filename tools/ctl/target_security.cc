#include "tools/ctl/target_security.h"

#include "base/daemon/daemon_endpoints.h"
#include "base/file_system.h"
#include "base/status.h"
#include "services/config/run_config.h"

namespace syncopate::ctl {
namespace {

auth::TransportSecurity::Options MakeOptions(const TargetSecurityFlags& flags) {
  auth::TransportSecurity::Options options;
  options.tls_cert = flags.tls_cert;
  options.tls_key = flags.tls_key;
  options.tls_ca = flags.tls_ca;
  options.token_file = flags.token_file;
  if (!flags.trust_domain.empty()) options.trust_domain = flags.trust_domain;
  return options;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const auth::TransportSecurity>> FindTargetSecurity(const TargetSecurityFlags& flags,
                                                                                  const DaemonOptions& daemons) {
  if (!flags.empty()) return auth::TransportSecurity::Load(MakeOptions(flags));
  const std::shared_ptr<const auth::TransportSecurity> plaintext;
  std::string run_dir = daemons.run_dir;
  if (run_dir.empty()) {
    if (!daemons.target.empty()) return plaintext;
    absl::StatusOr<std::string> newest = daemon::FindNewestRun(daemons.runs_dir);
    if (!newest.ok()) return plaintext;  // the search for the daemons reports it
    run_dir = *newest;
  }
  // The configuration with which the daemons were started: a resume's while it is on trial, else the run's.
  absl::StatusOr<v1::RunConfig> config = config::LoadRunConfig(JoinPath(run_dir, config::kNextConfigFile));
  if (absl::IsNotFound(config.status())) return plaintext;  // the daemons were started by hand
  SYNCOPATE_RETURN_IF_ERROR(config.status());
  return auth::TransportSecurity::Load(config->security(), "");
}

}  // namespace syncopate::ctl
