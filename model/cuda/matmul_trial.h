#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "cuda/stream.h"
#include "model/cuda/matmul.h"

namespace syncopate::model {

// Made-up operands on which two ways of a product show whether they add up in the same order. The second half of each row
// of w is the first one negated, and of x it is the first one again: each sum is zero but for what was rounded away on the
// way to it, and every element of the result is that alone, in whatever precision it is given. No libtorch.
class MatmulTrial {
 public:
  // The most that is tried.
  struct Extent {
    int64_t w_elements = 0, x_elements = 0, result_bytes = 0, bias_elements = 0;

    void Include(const MatmulShape& shape);
  };
  // Takes the memory. RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY, INTERNAL reason CUDA_ERROR.
  static absl::StatusOr<MatmulTrial> Create(int device, const Extent& extent, cudaStream_t stream);
  MatmulTrial(MatmulTrial&&) noexcept = default;

  cudaStream_t stream() const { return stream_; }
  // Operands for `shape`, whose k is even; the result's memory is all zero. Queues and returns.
  absl::StatusOr<MatmulOperands> MakeUp(const MatmulShape& shape) const;
  // Sets the result's memory to zero again. Queues and returns.
  absl::Status ClearResult(const MatmulShape& shape) const;
  // A digest of the bits of the result. Blocks.
  absl::StatusOr<uint64_t> DigestResult(const MatmulShape& shape) const;

 private:
  MatmulTrial(cuda::DeviceBuffer memory, const Extent& extent, cudaStream_t stream);

  cuda::DeviceBuffer memory_;
  char *w_ = nullptr, *x_ = nullptr, *bias_ = nullptr, *result_ = nullptr, *digest_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace syncopate::model
