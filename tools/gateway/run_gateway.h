#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "syncopate/v1/synchronizer.pb.h"
#include "tools/ctl/daemons.h"
#include "tools/ctl/target_security.h"

namespace syncopate::gateway {

struct GatewayOptions {
  std::string listen = "127.0.0.1:8000";
  ctl::DaemonOptions daemons = {};         // where the synchronizer is
  ctl::TargetSecurityFlags security = {};  // what is shown to it, as a viewer
  std::string client_token_file = {};      // whose clients are let in; "": everybody on this machine
  bool insecure_bind = false;
};

// The endpoints of the rollouters that can answer: they have one, are members that were heard of lately, and serve a
// version. Pure.
std::set<std::string> ReadyEndpoints(const v1::ListMembersResponse& members);

// Serves until the process is told to stop. Waits for a synchronizer that is not there yet, and keeps the last endpoints
// while it is away. INVALID_ARGUMENT for bad options; errors of TransportSecurity::Load and Gateway::Start.
absl::Status RunGateway(const GatewayOptions& options);

}  // namespace syncopate::gateway
