#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// The kernels of MatmulTrial. Launches queue and return.
namespace syncopate::model {

// Fills matrix [rows, columns] bf16, `columns` even: the second half of each row is the first half, or the negated
// first half.
cudaError_t FillHalves(void* matrix, int64_t rows, int32_t columns, bool negated, uint64_t seed, cudaStream_t stream);

// Adds a digest of `data`, which depends on all bits and their positions, to *digest in device memory. `bytes` must be
// a multiple of 4.
cudaError_t AddDigest(const void* data, int64_t bytes, uint64_t* digest, cudaStream_t stream);

}  // namespace syncopate::model
