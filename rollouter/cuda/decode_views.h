#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "rollouter/cuda/decode/decode_model.h"

namespace syncopate::rollouter {

// Returns the model in the form that the decode kernels read. `sets`: views of the weights with the adapters of each
// set (WeightArenas::weights_of), which share the base; without adapters one. FAILED_PRECONDITION (reason
// UNSUPPORTED_SHAPE), naming what the kernels do not support.
struct DecodeViews {
  DecodeShape shape;
  DecodeWeights weights;  // addresses of `weights`, which keeps ownership
};
absl::StatusOr<DecodeViews> ViewForDecoding(const model::ModelConfig& config,
                                            const std::vector<const model::TransformerWeights*>& sets);

// Returns the rotary table of Transformer's positions [0, positions): [positions, head_dim / 2, 2], cosine and sine.
std::vector<float> MakeRotations(const model::ModelConfig& config, int64_t positions);

}  // namespace syncopate::rollouter
