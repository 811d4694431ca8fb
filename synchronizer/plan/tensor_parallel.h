#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"

namespace syncopate::synchronizer {

struct TensorParallelOptions {
  int32_t ranks = 1;  // 1, 2, 4 or 8
  // A rank keeps its slices of tensors with the same TensorSpec::joint as one tensor of that name, one after the other.
  bool fused = false;
  // Each rank holds the whole of tensors that are split by vocabulary, not a part of their rows.
  bool whole_vocabulary = false;
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

// How the ranks of one replica hold a model, by TensorSpec::split and head of its tensors:
//   kAll         by all
//   kRows        by rows, heads whole; with fewer heads than ranks each head is held by several ranks
//   kColumns     by columns, heads whole
//   kVocabulary  by rows, and if they do not divide, the last ranks' rows are padding; or by all (whole_vocabulary)
// Each local tensor starts on a kAlignment boundary. One rank holds any model whole. INVALID_ARGUMENT reason BAD_LAYOUT naming
// the tensor and the remedy if heads or rows do not divide, or tensors of one joint do not fit together.
absl::StatusOr<TensorParallelLayout> MakeTensorParallel(const Manifest& manifest, const TensorParallelOptions& options);

}  // namespace syncopate::synchronizer
