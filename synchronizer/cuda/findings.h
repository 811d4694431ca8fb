#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/manifest.h"
#include "synchronizer/cuda/kernels.h"
#include "synchronizer/transport/weight_target.h"

// Converts the kernels' findings into digests and errors.
namespace syncopate::synchronizer {

inline constexpr int64_t kAllFinite = -1;  // value of first_non_finite if no item found such a number

// Initialises `findings` for the kernels, in the order of `stream`. The two arrays of `findings` must be adjacent.
absl::Status ClearFindings(Findings findings, int64_t digests, cudaStream_t stream);

// Computes the digest of each bucket from the sum of its words.
std::vector<uint64_t> FinishDigests(const uint64_t* sums, const std::vector<ByteRange>& buckets);

// DATA_LOSS reason NON_FINITE, naming tensor and element: the first of `numbers` (by begin) that is not finite at or
// after byte `begin` of the arena on `device`. Elements count from the begin of their range; `counted` says so in the
// message if that is not the tensor's begin. Blocks while it reads those bytes back.
absl::Status NonFiniteError(const std::vector<TypedRange>& numbers, int64_t begin, const char* arena, int device,
                            const std::string& counted = "");

}  // namespace syncopate::synchronizer
