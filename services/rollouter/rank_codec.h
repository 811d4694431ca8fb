#pragma once

#include "absl/status/statusor.h"
#include "rollouter/engine/engine_commands.h"
#include "syncopate/v1/replica.pb.h"

namespace syncopate::rollouterd {

v1::ReplicaServiceAttendResponse ToProto(const rollouter::EngineCommand& command);
// Reads a message that is a command. INTERNAL (reason RANK_MISMATCH) for any other message, and for incomplete lists.
absl::StatusOr<rollouter::EngineCommand> FromProto(const v1::ReplicaServiceAttendResponse& message);

}  // namespace syncopate::rollouterd
