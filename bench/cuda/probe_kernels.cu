#include "bench/cuda/probe_kernels.h"

#include "synchronizer/cuda/word_digest.cuh"

namespace syncopate::bench {
namespace {

using synchronizer::kAllLanes;
using synchronizer::kBlocksPerMultiprocessor;
using synchronizer::kThreads;
using synchronizer::kWarp;
using synchronizer::Launch;

constexpr int kUnroll = 8;
constexpr int kTile = 16;

__device__ __forceinline__ uint64_t WordSum(uint4 vector) {
  return static_cast<uint64_t>(vector.x) + vector.y + vector.z + vector.w;
}

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    ReadWeightsKernel(const uint4* data, int64_t vectors, uint64_t* sum) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  uint64_t mine = 0;
  int64_t v = thread;
  for (; v + (kUnroll - 1) * threads < vectors; v += kUnroll * threads) {
    uint4 loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) loaded[u] = __ldcs(data + v + u * threads);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) mine += WordSum(loaded[u]);
  }
  for (; v < vectors; v += threads) mine += WordSum(__ldcs(data + v));
  for (int offset = kWarp / 2; offset > 0; offset /= 2) mine += __shfl_xor_sync(kAllLanes, mine, offset);
  if (threadIdx.x % kWarp == 0) atomicAdd(reinterpret_cast<unsigned long long*>(sum), mine);
}

__global__ void MatmulKernel(const float* a, const float* b, float* c, int n) {
  __shared__ float a_tile[kTile][kTile];
  __shared__ float b_tile[kTile][kTile + 1];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  float dot = 0;
  for (int k = 0; k < n; k += kTile) {
    a_tile[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    b_tile[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < kTile; ++i) dot += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = dot;
}

// A bf16 with a random sign and mantissa and an exponent of -8 to 7.
__device__ __forceinline__ uint32_t RandomWeight(uint32_t bits) {
  return (bits & 0x807fu) | (127u - 8u + (bits >> 8 & 0xfu)) << 7;
}

__global__ void __launch_bounds__(kThreads) FillRandomKernel(uint32_t* data, int64_t words, uint64_t seed) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < words; i += threads) {
    const uint64_t random = Mix64(seed * kDigestStride + static_cast<uint64_t>(i) + 1);
    data[i] = RandomWeight(static_cast<uint32_t>(random)) | RandomWeight(static_cast<uint32_t>(random >> 32)) << 16;
  }
}

}  // namespace

cudaError_t LaunchReadWeights(const char* data, int64_t bytes, uint64_t* sum, int blocks, cudaStream_t stream) {
  return Launch(ReadWeightsKernel, blocks, blocks, stream, reinterpret_cast<const uint4*>(data),
                bytes / synchronizer::kVectorBytes, sum);
}

cudaError_t LaunchMatmul(const float* a, const float* b, float* c, int n, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(n / kTile, n / kTile);
  config.blockDim = dim3(kTile, kTile);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, MatmulKernel, a, b, c, n);
}

cudaError_t LaunchFillRandom(char* data, int64_t bytes, uint64_t seed, int blocks, cudaStream_t stream) {
  return Launch(FillRandomKernel, blocks, blocks, stream, reinterpret_cast<uint32_t*>(data), bytes / 4, seed);
}

}  // namespace syncopate::bench
