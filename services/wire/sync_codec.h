#pragma once

#include "base/status.h"
#include "synchronizer/loop/state_log.h"
#include "synchronizer/messages.h"
#include "syncopate/v1/synchronizer.pb.h"

// The synchronizer's plain messages to protobuf and back; rules as in codec.h. Pure functions.
namespace syncopate::wire {

v1::JoinRequest::Hello ToProto(const synchronizer::Hello& hello);
absl::StatusOr<synchronizer::Hello> FromProto(const v1::JoinRequest::Hello& message);

v1::JoinRequest::SyncReport ToProto(const synchronizer::SyncReport& report);
absl::StatusOr<synchronizer::SyncReport> FromProto(const v1::JoinRequest::SyncReport& message);

v1::JoinResponse ToProto(const synchronizer::Command& command);
absl::StatusOr<synchronizer::Command> FromProto(const v1::JoinResponse& message);

v1::Subset ToProto(const synchronizer::Subset& subset);
synchronizer::Subset FromProto(const v1::Subset& message);

v1::SyncRecord ToProto(const synchronizer::SyncRecord& record, double ended_unix_seconds);

// Negative counts become 0.
v1::SyncTally ToProto(const synchronizer::SyncTally& syncs);
synchronizer::SyncTally FromProto(const v1::SyncTally& message);

// The synchronizer's log, as records of SynchronizerLogRecord.
const synchronizer::StateCodec& ProtoStateCodec();

}  // namespace syncopate::wire
