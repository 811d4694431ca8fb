#pragma once

#include "base/status.h"
#include "services/config/run_model.h"
#include "services/daemon/daemon.h"

namespace syncopate::trainerd {

// Runs a trainer rank other than 0: attends rank 0, which says what the run is, where the ranks meet and what to begin
// with, and carries out its commands until it says that the run is over. This rank joins no synchronizer and writes no
// file of the run except its shards of checkpoints: rank 0 does the rest for the group. OK then; UNAVAILABLE (reason
// RANK_LOST) if rank 0 or another rank is gone, or cannot be reached for two minutes; rank 0's refusal; errors of the
// policy.
//
// Two threads: the calling thread sends heartbeats, answers probes and watches for signals; another one computes. Rank
// 0, which gets the same signal to stop, decides when to stop, within run.grace.
absl::Status FollowRank0(daemon::Daemon* daemon, config::RunModel model, int32_t rank);

}  // namespace syncopate::trainerd
