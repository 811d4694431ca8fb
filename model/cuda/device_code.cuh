#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

// Code that the engine's kernels share: 16-byte vectors of bf16, sums over a block, and launches that overlap. For .cu
// files only.
namespace syncopate::model {

using bf16 = __nv_bfloat16;

constexpr int kWarp = 32;
constexpr int kVector = 8;  // bf16 elements of a 16-byte access
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kMultiprocessors = 132;  // of an H100 or H200, for which grids are sized

struct alignas(16) Vector {
  __nv_bfloat162 pairs[kVector / 2];
};

// One access of 16 bytes. A copy of a Vector is compiled to four of 4 bytes, because its members have copy operators.
__device__ __forceinline__ Vector Read(const void* from) {
  const uint4 bits = *static_cast<const uint4*>(from);
  return *reinterpret_cast<const Vector*>(&bits);
}

__device__ __forceinline__ void Write(void* to, const Vector& vector) {
  *static_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&vector);
}

__device__ __forceinline__ void Widen(const Vector& vector, float* values) {
  const unsigned* pairs = reinterpret_cast<const unsigned*>(&vector);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    values[2 * i] = __uint_as_float(pairs[i] << 16);
    values[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ Vector Narrow(const float* values) {
  Vector vector;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) vector.pairs[i] = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
  return vector;
}

__device__ __forceinline__ void Load(const bf16* from, float* values) { Widen(Read(from), values); }

__device__ __forceinline__ void Load(const float* from, float* values) {
  const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

__device__ __forceinline__ void Store(bf16* to, const float* values) { Write(to, Narrow(values)); }

__device__ __forceinline__ float Round(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }

// x[i] = bf16(x[i] * scale) * weight[i]: rounds as RmsNorm of model/transformer.h does, so that engine and trainer
// agree; storing x rounds the product to bf16.
__device__ __forceinline__ void ScaleAsRmsNorm(float* x, float scale, const float* weight) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = Round(x[i] * scale) * weight[i];
}

// The sum over the block, bit-identical in every thread. `warps`: shared memory for one number of each warp. All
// threads of the block must call it.
__device__ __forceinline__ float BlockSum(float value, float* warps) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) sum += warps[warp];
  return sum;
}

// Programmatic dependent launch: a chained kernel's blocks may start while the kernel before it still runs. Memory that
// earlier kernels write may be accessed only after WaitForEarlierKernels. A kernel first waits and then lets the next
// one start, so that the kernels before its predecessor are over too. Every block must wait, even one without work:
// otherwise a kernel could end before its predecessor.
__device__ __forceinline__ void WaitForEarlierKernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void LetNextKernelStart() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

template <typename... Parameters, typename... Arguments>
cudaError_t LaunchChained(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                          cudaStream_t stream, Arguments... arguments) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

}  // namespace syncopate::model
