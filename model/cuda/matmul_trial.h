#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "cuda/stream.h"
#include "model/cuda/matmul.h"

namespace syncopate::model {

// Made-up operands that show whether two algorithms of a product sum in the same order. In each row of w the second
// half is the negated first half, and in each row of x it is the first half again: each exact sum is zero, so every
// element of the result is only the rounding errors of its summation, in any precision of the result. No libtorch.
class MatmulTrial {
 public:
  // The largest sizes of all shapes to be tried.
  struct Extent {
    int64_t w_elements = 0, x_elements = 0, result_bytes = 0, bias_elements = 0;

    void Include(const MatmulShape& shape);
  };
  // Allocates the memory. RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY, INTERNAL reason CUDA_ERROR.
  static absl::StatusOr<MatmulTrial> Create(int device, const Extent& extent, cudaStream_t stream);
  MatmulTrial(MatmulTrial&&) noexcept = default;

  cudaStream_t stream() const { return stream_; }
  // Operands for `shape`, whose k must be even; the result's memory is all zero. Queues and returns.
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
