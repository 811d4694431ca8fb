#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "services/daemon/daemon.h"
#include "services/rpc/rank_attendance.h"

namespace syncopate::daemon {

// The main loop of a process that is not rank 0 of its group. `run` does all of the work on its own thread, while the
// calling thread sends a heartbeat each second, answers probes and watches for signals. Until `attending` is ready, the
// daemon's health is `starting`, waiting for `rank0` ("trainer rank 0"), and a request to stop ends the wait. Later
// rank 0, which gets the same signal, decides when to stop, within run.grace. Blocks until `run` has returned, and
// returns its status.
absl::Status AttendRank0(Daemon* daemon, rpc::Attending* attending, const std::string& rank0,
                         const std::function<absl::Status()>& run);

}  // namespace syncopate::daemon
