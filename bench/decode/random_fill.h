#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace syncopate::bench {

// Queues the writing of `count` normally distributed bf16 numbers, a function of seed and position.
cudaError_t FillNormal(void* to, int64_t count, float mean, float deviation, uint64_t seed, cudaStream_t stream);

}  // namespace syncopate::bench
