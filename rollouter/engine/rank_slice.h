#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "model/model_config.h"
#include "synchronizer/plan/layout.h"

// How the ranks of one replica share a model (tensor parallelism): each has its part of the attention heads, with their
// keys and values, and of the feed-forward's columns; embeddings, norms and head are on all of them. No torch.
//
// The vocabulary is not cut: a head that is tied is the embedding, which all need whole. Decoders of GPUs that reach each
// other's memory share the head's work all the same, each for its part of the vocabulary.
namespace syncopate::rollouter {

// OK if `config` can be cut for so many ranks: 1, 2, 4 or 8, which divide query heads and the feed-forward; key/value
// heads are divided too, or divide the ranks, each of which then holds one that others hold as well. INVALID_ARGUMENT
// reason BAD_CONFIG, saying what does not divide and which sizes do.
absl::Status CheckTensorParallel(const model::ModelConfig& config, int32_t ranks);

// What the plan of a weight sync calls these slices (synchronizer/plan/layout_text.h); "" for one rank.
std::string TensorParallelLayout(int32_t ranks);

// What each rank has: the same shapes on all of them.
struct RankSlice {
  model::ModelConfig config;  // of a model of the rank's own heads and columns
  // Of the rank's arena; q, k and v of a layer are one tensor, and gate and up.
  Manifest manifest;
  synchronizer::Layout layout;  // which part of the whole model's tensors each rank's arena holds
};
// `whole` is the manifest of `config`; more than one rank. Errors as CheckTensorParallel.
absl::StatusOr<RankSlice> MakeRankSlice(const model::ModelConfig& config, const Manifest& whole, int32_t ranks);

// Copies the rank's part of whole.arena_bytes() bytes in host memory to slice.manifest.arena_bytes() bytes in host
// memory; padding becomes zero.
void CopyRankSlice(const Manifest& whole, const RankSlice& slice, int32_t rank, const char* from, char* to);

}  // namespace syncopate::rollouter
