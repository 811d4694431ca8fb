#pragma once

#include "base/status.h"
#include "model/model_config.h"
#include "services/daemon/daemon.h"

namespace syncopate::rollouterd {

// Another rank of a rollouter than rank 0, from its start to its end: attends rank 0, holds its slice of the weights,
// of which it is the receiver in weight syncs, and carries out what rank 0 orders. `config` has what was learned of the
// model. OK when rank 0 has said that the replica stops; UNAVAILABLE (reason RANK_LOST) if it or another rank is gone,
// and then the process ends with the exit code of a peer that was lost.
absl::Status FollowReplica(daemon::Daemon* daemon, const v1::RunConfig& config, const model::ModelConfig& shape,
                           int32_t rank);

}  // namespace syncopate::rollouterd
