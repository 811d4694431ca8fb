#pragma once

#include "base/status.h"
#include "model/model_config.h"
#include "services/daemon/daemon.h"

namespace syncopate::rollouterd {

// Runs a rank above 0 of a rollouter, from its start to its end: attends rank 0, has its slice of the weights, receives
// that slice in weight syncs, and carries out rank 0's commands. `config` must include what the trainer said of the
// model. OK when rank 0 has said that the replica stops; UNAVAILABLE (reason RANK_LOST) if rank 0 or another rank is
// gone; the process then ends with the exit code for a lost peer.
absl::Status FollowReplica(daemon::Daemon* daemon, const v1::RunConfig& config, const model::ModelConfig& shape,
                           int32_t rank);

}  // namespace syncopate::rollouterd
