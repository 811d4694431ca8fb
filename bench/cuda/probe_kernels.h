#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace syncopate::bench {

// Adds the 32-bit words of `bytes` (a multiple of 16) at `data` to *sum. Reads each byte once, at full bandwidth.
cudaError_t LaunchReadWeights(const char* data, int64_t bytes, uint64_t* sum, int blocks, cudaStream_t stream);

// c = a * b for n x n float matrices, n a multiple of 16.
cudaError_t LaunchMatmul(const float* a, const float* b, float* c, int n, cudaStream_t stream);

// Random finite bf16 numbers, none of which is zero, from (seed, position).
cudaError_t LaunchFillRandom(char* data, int64_t bytes, uint64_t seed, int blocks, cudaStream_t stream);

}  // namespace syncopate::bench
