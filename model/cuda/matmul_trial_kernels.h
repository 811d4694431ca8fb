#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// The kernels of MatmulTrial. Launches queue and return.
namespace syncopate::model {

// matrix [rows, columns] bf16, `columns` even: the second half of each row is the first one, or that negated.
cudaError_t FillHalves(void* matrix, int64_t rows, int32_t columns, bool negated, uint64_t seed, cudaStream_t stream);

// Adds to *digest, in device memory, what tells these bits at these places from others. A multiple of 4 bytes.
cudaError_t AddDigest(const void* data, int64_t bytes, uint64_t* digest, cudaStream_t stream);

}  // namespace syncopate::model
