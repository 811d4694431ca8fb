#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "services/daemon/daemon.h"
#include "services/rpc/rank_attendance.h"

namespace syncopate::daemon {

// The life of a process that is not rank 0 of its group: `run` does all of its work, on a thread of its own, while this
// one sends a heartbeat each second, answers probes and sees signals. Until `attending` is ready the daemon's health is
// `starting`, waiting for `rank0` ("trainer rank 0"), and a request to stop ends it; later rank 0, which has the signal
// too, says when it stops, as long as run.grace lets it. Blocks until `run` has returned, and returns what that did.
absl::Status AttendRank0(Daemon* daemon, rpc::Attending* attending, const std::string& rank0,
                         const std::function<absl::Status()>& run);

}  // namespace syncopate::daemon
