#pragma once

#include "base/status.h"
#include "services/config/run_model.h"
#include "services/daemon/daemon.h"

namespace syncopate::trainerd {

// The whole of a trainer rank other than 0: attends rank 0, which says what run it is, where the ranks meet and what to
// begin with, and carries out its commands until it says that the run is over. It joins no synchronizer and writes no
// file: rank 0 does both for the group. OK then; UNAVAILABLE (reason RANK_LOST) if rank 0 or another rank is gone,
// or cannot be reached for two minutes; what rank 0 refuses it with; the errors of the policy.
//
// Two threads: this one sends heartbeats, answers probes and sees signals; one of its own computes. A signal to stop
// is left to rank 0, which has it too, as long as run.grace lets it.
absl::Status FollowRank0(daemon::Daemon* daemon, config::RunModel model, int32_t rank);

}  // namespace syncopate::trainerd
