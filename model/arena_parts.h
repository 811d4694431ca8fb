#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "base/manifest.h"
#include "model/model_config.h"
#include "model/transformer.h"

namespace syncopate::model {

// A part of an arena that has memory of its own.
struct ArenaPart {
  ByteRange range;    // of the manifest's arena; no tensor lies across its ends, nor do joint linears
  at::Tensor memory;  // flat, what lies at range.begin first; several parts may take turns in one
};

// Views as those of ViewWeights() of one arena, into `parts`, which cover it in order.
TransformerWeights ViewWeights(const ModelConfig& config, const Manifest& manifest,
                               const std::vector<ArenaPart>& parts);

}  // namespace syncopate::model
