#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "model/cuda/train_kernels.h"

// Code that the training kernels share: rows of either type as 16-byte vectors of float32 numbers, sums over a block,
// the choice of the type at a launch. The engine's kernels, which support only bfloat16, use device_code.cuh. For .cu
// files only.
namespace syncopate::model::kernels {

constexpr int kWarp = 32;

// 16 bytes of a row, in registers as float32 numbers.
template <typename T>
struct Vector;

template <>
struct Vector<float> {
  static constexpr int kSize = 4;
  float value[kSize];
  __device__ void Load(const float* from) {
    *reinterpret_cast<float4*>(value) = *reinterpret_cast<const float4*>(from);
  }
  __device__ void Store(float* to) const { *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(value); }
  __device__ void Round() {}
};

template <>
struct Vector<__nv_bfloat16> {
  static constexpr int kSize = 8;
  float value[kSize];
  __device__ void Load(const __nv_bfloat16* from) {
    uint4 raw = *reinterpret_cast<const uint4*>(from);
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) {
      float2 pair = __bfloat1622float2(pairs[i]);
      value[2 * i] = pair.x;
      value[2 * i + 1] = pair.y;
    }
  }
  __device__ void Store(__nv_bfloat16* to) const {
    uint4 raw;
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(&raw);
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) pairs[i] = __floats2bfloat162_rn(value[2 * i], value[2 * i + 1]);
    *reinterpret_cast<uint4*>(to) = raw;
  }
  // Rounds to the numbers that Store() writes.
  __device__ void Round() {
#pragma unroll
    for (float& v : value) v = __bfloat162float(__float2bfloat16_rn(v));
  }
};

template <typename T>
__device__ __forceinline__ float ToFloat(T x);
template <>
__device__ __forceinline__ float ToFloat(float x) {
  return x;
}
template <>
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ void Assign(float* to, float x) { *to = x; }
__device__ __forceinline__ void Assign(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// The sum over the block, in every thread, in a fixed order. The number of threads must be a multiple of kWarp.
__device__ __forceinline__ float BlockSum(float x, float* shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  x = WarpSum(x);
  if (warps == 1) return x;
  __syncthreads();  // all threads have read the previous sum
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return WarpSum(lane < warps ? shared[lane] : 0.f);
}

inline int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls f with a null pointer of the type that `number` names.
template <typename F>
cudaError_t ForType(Number number, F f) {
  if (number == Number::kFloat32) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<__nv_bfloat16*>(nullptr));
  }
  return cudaGetLastError();
}

}  // namespace syncopate::model::kernels
