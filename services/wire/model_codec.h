#pragma once

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "syncopate/v1/trainer.pb.h"

namespace syncopate::wire {

v1::ModelShape ToProto(const model::ModelConfig& shape);
// INVALID_ARGUMENT (reason BAD_MESSAGE) for a kind of rope scaling that is not known; FAILED_PRECONDITION for a kind of layer
// that is not known (UNKNOWN_LAYER_KIND), and if the peer's digest of the layers is another (OTHER_MODEL); the reasons of
// ModelConfig::Validate.
absl::StatusOr<model::ModelConfig> FromProto(const v1::ModelShape& message);

}  // namespace syncopate::wire
