#include "model/cuda/device_code.cuh"
#include "model/cuda/matmul_trial_kernels.h"

namespace syncopate::model {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = kMultiprocessors * 8;

// The finaliser of splitmix64.
__device__ __forceinline__ uint64_t Mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// A number of either sign and of a magnitude that varies by up to 2^8, so that a sum of such numbers rounds at most
// steps.
__device__ __forceinline__ float MadeUp(uint64_t place, uint64_t seed) {
  const uint64_t bits = Mixed((place + 1) * 0x9e3779b97f4a7c15ull + seed);
  const float mantissa = 1 + static_cast<float>(bits & 0x7f) / 128;
  const float size = ldexpf(mantissa, -static_cast<int>(bits >> 8 & 7));
  return (bits >> 16 & 1) != 0 ? size : -size;
}

__global__ void __launch_bounds__(kThreads)
    Fill(bf16* matrix, int64_t elements, int32_t half, bool negated, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements; i += step) {
    const int64_t row = i / half, place = row * 2 * half + i % half;
    const float value = MadeUp(static_cast<uint64_t>(i), seed);
    matrix[place] = __float2bfloat16_rn(value);
    matrix[place + half] = __float2bfloat16_rn(negated ? -value : value);
  }
}

__global__ void __launch_bounds__(kThreads) Digest(const uint32_t* words, int64_t count, uint64_t* digest) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  unsigned long long sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    sum += Mixed(static_cast<uint64_t>(i) << 32 | words[i]);
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  if (threadIdx.x % kWarp == 0) atomicAdd(reinterpret_cast<unsigned long long*>(digest), sum);
}

unsigned BlocksFor(int64_t count) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

}  // namespace

cudaError_t FillHalves(void* matrix, int64_t rows, int32_t columns, bool negated, uint64_t seed, cudaStream_t stream) {
  if (rows <= 0 || columns <= 0 || columns % 2 != 0) return cudaErrorInvalidValue;
  const int64_t elements = rows * (columns / 2);
  Fill<<<BlocksFor(elements), kThreads, 0, stream>>>(static_cast<bf16*>(matrix), elements, columns / 2, negated, seed);
  return cudaGetLastError();
}

cudaError_t AddDigest(const void* data, int64_t bytes, uint64_t* digest, cudaStream_t stream) {
  if (bytes <= 0 || bytes % 4 != 0) return cudaErrorInvalidValue;
  Digest<<<BlocksFor(bytes / 4), kThreads, 0, stream>>>(static_cast<const uint32_t*>(data), bytes / 4, digest);
  return cudaGetLastError();
}

}  // namespace syncopate::model
