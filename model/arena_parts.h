#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "base/manifest.h"
#include "model/model_config.h"
#include "model/transformer.h"

namespace syncopate::model {

// A part of an arena that has its own memory.
struct ArenaPart {
  ByteRange range;    // bytes of the manifest's arena; no tensor and no joint linears cross its ends
  at::Tensor memory;  // flat, beginning with the byte at range.begin; several parts may use the same memory in turn
};

// The same views as ViewWeights() of one arena, but with views into `parts`, which are in order. Tensors in none of them are
// undefined.
TransformerWeights ViewWeights(const ModelConfig& config, const Manifest& manifest,
                               const std::vector<ArenaPart>& parts);

}  // namespace syncopate::model
