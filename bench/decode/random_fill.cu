#include <cuda_bf16.h>

#include "bench/decode/random_fill.h"

namespace syncopate::bench {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 32;

// Mixes the bits of a number (the finaliser of SplitMix64).
__device__ __forceinline__ uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Two numbers in each iteration, by the Box-Muller transform.
__global__ void Fill(__nv_bfloat162* to, int64_t pairs, float mean, float deviation, uint64_t seed) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < pairs; i += threads) {
    const uint64_t bits = Mix(seed * 0x9E3779B97F4A7C15 + static_cast<uint64_t>(i));
    const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
    const float angle = static_cast<float>(bits & 0xffffff) * (6.2831853f * 0x1p-24f);
    const float radius = deviation * sqrtf(-2.0f * __logf(u));
    to[i] = __floats2bfloat162_rn(mean + radius * __cosf(angle), mean + radius * __sinf(angle));
  }
}

}  // namespace

cudaError_t FillNormal(void* to, int64_t count, float mean, float deviation, uint64_t seed, cudaStream_t stream) {
  if (count % 2 != 0) return cudaErrorInvalidValue;
  const int64_t blocks = (count / 2 + kThreads - 1) / kThreads;
  Fill<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0, stream>>>(
      static_cast<__nv_bfloat162*>(to), count / 2, mean, deviation, seed);
  return cudaGetLastError();
}

}  // namespace syncopate::bench
