#pragma once

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "rollouter/cuda/decode/decode_model.h"

namespace syncopate::rollouter {

// The model as the decode kernels see it. FAILED_PRECONDITION reason UNSUPPORTED_SHAPE, naming what they are not made
// for.
struct DecodeViews {
  DecodeShape shape;
  DecodeWeights weights;  // addresses of `weights`, which stay theirs
};
absl::StatusOr<DecodeViews> ViewForDecoding(const model::ModelConfig& config, const model::TransformerWeights& weights);

// The rotary table of Transformer's positions [0, positions): [positions, head_dim / 2, 2], cosine and sine.
std::vector<float> MakeRotations(const model::ModelConfig& config, int64_t positions);

}  // namespace syncopate::rollouter
