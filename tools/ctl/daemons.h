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
  std::string target;                          // host:port of one daemon; "": use a run directory
  std::string run_dir;                         // "": the newest run under runs_dir
  std::string runs_dir = "runs";               // where `syncopate run` makes run directories by default
  absl::Duration timeout = absl::Seconds(10);  // of each call
  std::shared_ptr<const auth::TransportSecurity> security = nullptr;  // null: plaintext
};

// The daemons that a command line may talk to: one that is named by its address, or all of a run directory.
class Daemons {
 public:
  // With a target it asks that daemon for its role, so it blocks up to the timeout; errors of that call, or
  // INVALID_ARGUMENT (reason BAD_ADDRESS). Without a target: errors of FindNewestRun and ReadRunEndpoints.
  static absl::StatusOr<Daemons> Find(const DaemonOptions& options);

  const std::vector<daemon::DaemonEndpoint>& all() const { return endpoints_; }

  // The daemon named `who` ("rollouter-1", or "trainer" for the first of a role); if `who` is "", the first daemon with
  // the first of `roles` that has one. NOT_FOUND (reason NO_SUCH_DAEMON) that names the existing daemons;
  // INVALID_ARGUMENT (reason WRONG_ROLE) if that daemon's role is not in `roles`.
  absl::StatusOr<daemon::DaemonEndpoint> Pick(const std::string& who, const std::vector<std::string>& roles) const;

 private:
  std::vector<daemon::DaemonEndpoint> endpoints_;
};

// Asks a daemon for its role, by trying which service answers, and for a rollouter's name; fills in nothing else.
// FAILED_PRECONDITION (reason NOT_A_DAEMON) if no service answers; otherwise the call's error.
absl::StatusOr<daemon::DaemonEndpoint> AskWho(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout);

}  // namespace syncopate::ctl
