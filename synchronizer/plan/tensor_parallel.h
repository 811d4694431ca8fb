#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"

namespace syncopate::synchronizer {

struct TensorParallelOptions {
  int32_t ranks = 1;  // 1, 2, 4 or 8
  // A rank keeps its slices of q, k and v, one after the other, as one tensor qkv_proj, and those of gate and up as
  // gate_up_proj; weights and biases alike.
  bool fused = false;
  // Each rank holds the whole of embed_tokens and lm_head, not a part of their rows.
  bool whole_vocabulary = false;
  // Elements of one attention head; 0: the extent of q_norm, and 128 if the model has none. A wrong guess never cuts a
  // head: heads of 64 and 32 divide 128, and are then shared out in twos and fours.
  int64_t head_dim = 0;
};

// One tensor as a rank keeps it.
struct LocalTensor {
  TensorSpec spec;
  int64_t offset = 0;  // in the rank's arena
  friend bool operator==(const LocalTensor&, const LocalTensor&) = default;
};

struct TensorParallelLayout {
  Layout layout;
  std::vector<LocalTensor> tensors;  // in the order of the arena; the same for every rank
};

// How the ranks of one replica hold a Qwen-shaped model, told by the names of its tensors (Hugging Face's):
//   q_proj            by query heads: rows
//   k_proj, v_proj    by key/value heads: rows; with fewer heads than ranks each head is held by several ranks
//   gate_proj, up_proj                by rows
//   o_proj, down_proj                 by columns; their biases by all
//   embed_tokens, lm_head             by rows of the vocabulary, and if it does not divide, the last ranks' rows are
//                                     padding; or by all (whole_vocabulary)
//   norms (q_norm and k_norm too), position tables     by all
// Each local tensor starts on a kAlignment boundary. Tied embeddings need nothing: there is no lm_head to hold. One
// rank holds any model whole. INVALID_ARGUMENT reason BAD_LAYOUT naming the tensor and the remedy if heads or rows do
// not divide, a fused set is incomplete, or a name says nothing.
absl::StatusOr<TensorParallelLayout> MakeTensorParallel(const Manifest& manifest, const TensorParallelOptions& options);

}  // namespace syncopate::synchronizer
