#pragma once

#include "absl/status/status.h"
#include "base/manifest.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// Manifest::CheckSame (FAILED_PRECONDITION reason MODEL_MISMATCH), with the reason DTYPE_MISMATCH if the models differ
// in dtypes alone.
absl::Status CheckSameModel(const Manifest& ours, const Manifest& theirs);

// OK if there are no adapters, or they are ascending, disjoint ranges of the model's tensors and the base weights have
// a name; else INVALID_ARGUMENT reason BAD_SUBSET.
absl::Status CheckSubset(const Subset& subset, const Manifest& model);

}  // namespace syncopate::synchronizer
