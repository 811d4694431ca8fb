#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "model/model_config.h"
#include "synchronizer/plan/layout.h"

// Tensor parallelism: how the ranks of one replica share a model. Each rank has its part of the attention heads, with
// their keys and values, and of the feed-forward's columns; embeddings, norms and head are on all ranks. No torch.
//
// The vocabulary is not cut, because a tied head is the embedding, which all ranks need whole. GPU decoders that can
// access each other's memory still divide the work of the head, each for its part of the vocabulary.
namespace syncopate::rollouter {

// OK if `config` can be cut for `ranks` ranks: 1, 2, 4 or 8, which must divide query heads and the feed-forward. The
// number of key/value heads must be divisible by `ranks` or divide it; in the second case several ranks store the same
// head. INVALID_ARGUMENT (reason BAD_CONFIG), saying what does not divide and which sizes do.
absl::Status CheckTensorParallel(const model::ModelConfig& config, int32_t ranks);

// Returns the name of these slices in the plan of a weight sync (synchronizer/plan/layout_text.h); "" for one rank.
std::string TensorParallelLayout(int32_t ranks);

// The part of the model on each rank: the same shapes on all of them.
struct RankSlice {
  model::ModelConfig config;  // a model of the rank's own heads and columns
  // The manifest of the rank's arena; q, k and v of a layer are one tensor, and so are gate and up.
  Manifest manifest;
  synchronizer::Layout layout;  // which part of the whole model's tensors each rank's arena contains
};
// `whole` is the manifest of `config`; `ranks` is more than one. Errors as CheckTensorParallel.
absl::StatusOr<RankSlice> MakeRankSlice(const model::ModelConfig& config, const Manifest& whole, int32_t ranks);

// Copies the rank's part of whole.arena_bytes() bytes in host memory to slice.manifest.arena_bytes() bytes in host
// memory; padding becomes zero.
void CopyRankSlice(const Manifest& whole, const RankSlice& slice, int32_t rank, const char* from, char* to);

}  // namespace syncopate::rollouter
