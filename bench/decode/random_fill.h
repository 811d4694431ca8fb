#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace syncopate::bench {

// Queues `count` bf16 numbers of a normal distribution, a function of seed and place.
cudaError_t FillNormal(void* to, int64_t count, float mean, float deviation, uint64_t seed, cudaStream_t stream);

}  // namespace syncopate::bench
