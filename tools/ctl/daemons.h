#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/daemon/daemon_endpoints.h"
#include "services/auth/transport_security.h"

namespace syncopate::ctl {

struct DaemonOptions {
  std::string target;                          // host:port of one daemon; "" looks into a run directory
  std::string run_dir;                         // "" is the newest run under runs_dir
  std::string runs_dir = "runs";               // where `syncopate run` puts run directories unless told otherwise
  absl::Duration timeout = absl::Seconds(10);  // of one call
  std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // null: plaintext
};

// The daemons that a command line may talk to: one that was named by its address, or those of a run directory.
class Daemons {
 public:
  // With a target: asks that daemon what it is, so it blocks up to the timeout; errors of that call, or
  // INVALID_ARGUMENT (reason BAD_ADDRESS). Without: errors of FindNewestRun and ReadRunEndpoints.
  static absl::StatusOr<Daemons> Find(const DaemonOptions& options);

  const std::vector<daemon::DaemonEndpoint>& all() const { return endpoints_; }

  // The daemon named `who` ("rollouter-1", or "trainer" for the first of a role); with who == "" the first whose role
  // is among `roles`, in their order. NOT_FOUND (reason NO_SUCH_DAEMON) naming those there are; INVALID_ARGUMENT
  // (reason WRONG_ROLE) if that daemon's role is not among `roles`.
  absl::StatusOr<daemon::DaemonEndpoint> Pick(const std::string& who, const std::vector<std::string>& roles) const;

 private:
  std::vector<daemon::DaemonEndpoint> endpoints_;
};

// The daemon's role, by which service answers, and a rollouter's name; nothing else is filled in. FAILED_PRECONDITION
// (reason NOT_A_DAEMON) if none does; otherwise the call's error.
absl::StatusOr<daemon::DaemonEndpoint> AskWho(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout);

}  // namespace syncopate::ctl
