#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"

namespace syncopate::synchronizer {

struct TensorParallelOptions {
  int32_t ranks = 1;  // 1, 2, 4 or 8
  // Tensors with the same TensorSpec::joint: a rank stores its slices of them, one after the other, as one tensor of
  // that name.
  bool fused = false;
  // True: each rank stores all rows of tensors that are split by vocabulary; false: a part of their rows.
  bool whole_vocabulary = false;
};

// The form in which a rank stores one tensor.
struct LocalTensor {
  TensorSpec spec;
  int64_t offset = 0;  // in the rank's arena
  friend bool operator==(const LocalTensor&, const LocalTensor&) = default;
};

struct TensorParallelLayout {
  Layout layout;
  std::vector<LocalTensor> tensors;  // in the order of the arena; equal on every rank
};

// How the ranks of one replica store a model, by TensorSpec::split and head of its tensors:
//   kAll         on all ranks
//   kRows        split by rows, heads whole; with fewer heads than ranks, several ranks store the same head
//   kColumns     split by columns, heads whole
//   kVocabulary  split by rows, the last ranks' rows padded if needed; or on all ranks (whole_vocabulary)
// Each local tensor starts on a kAlignment boundary. One rank can store any model whole. INVALID_ARGUMENT reason
// BAD_LAYOUT naming the tensor and the remedy if heads or rows do not divide, or tensors of one joint do not fit
// together.
absl::StatusOr<TensorParallelLayout> MakeTensorParallel(const Manifest& manifest, const TensorParallelOptions& options);

}  // namespace syncopate::synchronizer
