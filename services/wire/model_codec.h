#pragma once

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "syncopate/v1/trainer.pb.h"

namespace syncopate::wire {

v1::ModelShape ToProto(const model::ModelConfig& shape);
// INVALID_ARGUMENT (reason BAD_MESSAGE) for an unknown kind of rope scaling; FAILED_PRECONDITION for an unknown kind of
// layer (UNKNOWN_LAYER_KIND), and if the peer computed another digest of the layers (OTHER_MODEL); the reasons of
// ModelConfig::Validate.
absl::StatusOr<model::ModelConfig> FromProto(const v1::ModelShape& message);

}  // namespace syncopate::wire
