#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "base/mix64.h"
#include "synchronizer/cuda/kernels.h"

// Shared by the kernels: the digest of base/digest.h for single words, and the finite test for a vector.
namespace syncopate::synchronizer {

inline constexpr int kThreads = 256;
inline constexpr int kBlocksPerMultiprocessor = 4;  // limits a thread to 64 registers
inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Launches at most `blocks` blocks for `count` items; no launch for 0 items. Returns the launch's own error, not an
// earlier error of this thread.
template <typename... Parameters>
cudaError_t Launch(void (*kernel)(Parameters...), int64_t count, int blocks, cudaStream_t stream,
                   std::type_identity_t<Parameters>... arguments) {
  if (count == 0) return cudaSuccess;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(count < blocks ? count : blocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Reading a kernel's attributes loads the kernel.
template <typename... Parameters>
cudaError_t Load(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, kernel);
}

// Word `index` of a bucket adds Mix64(word + Position(index)) to its sum.
__device__ __forceinline__ uint64_t Position(int64_t index) { return static_cast<uint64_t>(index + 1) * kDigestStride; }

__device__ __forceinline__ uint64_t Word(uint32_t low, uint32_t high) {
  return static_cast<uint64_t>(high) << 32 | low;
}

// Returns the sum of both words of a vector; `position` is the position of the first word.
__device__ __forceinline__ uint64_t DigestVector(uint4 vector, uint64_t position) {
  return Mix64(Word(vector.x, vector.y) + position) + Mix64(Word(vector.z, vector.w) + position + kDigestStride);
}

// A number is not finite iff all bits of its exponent are set. Exactly then, adding `carry` to the exponent's bits sets
// the bit above them. Tests one fp32 or two bf16 at a time.
struct FiniteTest {
  uint32_t exponent;
  uint32_t carry;
  uint32_t above;

  __device__ __forceinline__ explicit FiniteTest(NumberKind kind) {
    const bool pairs = kind == NumberKind::kBFloat16;
    exponent = kind == NumberKind::kNone ? 0u : pairs ? 0x7f807f80u : 0x7f800000u;
    carry = pairs ? 0x00800080u : 0x00800000u;
    above = pairs ? 0x80008000u : 0x80000000u;
  }
  // Returns a value other than zero iff a number in these bits is not finite.
  __device__ __forceinline__ uint32_t operator()(uint32_t bits) const { return ((bits & exponent) + carry) & above; }
  __device__ __forceinline__ uint32_t operator()(uint4 vector) const {
    return (*this)(vector.x) | (*this)(vector.y) | (*this)(vector.z) | (*this)(vector.w);
  }
};

// Calls use(v, load(v)) for this thread's share of `count` vectors, in ascending order of v, with kUnroll loads in
// flight.
template <int kUnroll, typename Load, typename Use>
__device__ __forceinline__ void ForEachVector(int32_t count, const Load& load, const Use& use) {
  int32_t v = threadIdx.x;
  for (; v + (kUnroll - 1) * kThreads < count; v += kUnroll * kThreads) {
    decltype(load(v)) loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) loaded[u] = load(v + u * kThreads);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) use(v + u * kThreads, loaded[u]);
  }
  for (; v < count; v += kThreads) use(v, load(v));
}

// The difference between the positions of a thread's consecutive vectors.
inline constexpr uint64_t kPositionStep = 2 * kThreads * kDigestStride;

// Adds a warp's part of a sum and records numbers that are not finite. All lanes must call it together.
__device__ __forceinline__ void Report(uint64_t sum, int32_t digest, uint32_t bad, int64_t begin, Findings findings) {
  if (digest >= 0) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  }
  const bool any_bad = __any_sync(kAllLanes, bad != 0);
  if (threadIdx.x % kWarp != 0) return;
  if (digest >= 0) atomicAdd(reinterpret_cast<unsigned long long*>(findings.sums + digest), sum);
  if (any_bad) {
    atomicMin(reinterpret_cast<unsigned long long*>(findings.first_non_finite), static_cast<unsigned long long>(begin));
  }
}

}  // namespace syncopate::synchronizer
