#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/peer_sum.h"

namespace syncopate::rollouter {
namespace {

using model::bf16;
using model::kVector;
using model::kWarp;

constexpr int kMaxThreads = model::kMaxHidden / kVector;
constexpr uint32_t kLooksBetweenStops = 1024;  // reading host memory takes a microsecond

__device__ __forceinline__ void Tell(uint32_t* flag, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t Look(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
// Loads from another GPU's memory, without this GPU's L1 cache.
__device__ __forceinline__ void LoadPeer(const bf16* from, float* values) {
  union {
    uint4 words;
    model::Vector vector;
  } loaded;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(loaded.words.x), "=r"(loaded.words.y), "=r"(loaded.words.z), "=r"(loaded.words.w)
               : "l"(from)
               : "memory");
  model::Widen(loaded.vector, values);
}

// Waits for all ranks at `row`, one thread per other rank. The writes of this rank's earlier kernels are complete.
__device__ void MeetAt(const PeerSums& peers, int64_t row) {
  const int32_t peer = static_cast<int32_t>(threadIdx.x);
  if (peer >= peers.world || peer == peers.rank) return;
  const uint32_t call = peers.counts[row] + 1;
  __threadfence_system();
  Tell(peers.flags[peer] + int64_t{peers.rank} * peers.rows_at_most + row, call);
  const uint32_t* const theirs = peers.flags[peers.rank] + int64_t{peer} * peers.rows_at_most + row;
  for (uint32_t looks = 1; static_cast<int32_t>(Look(theirs) - call) < 0; ++looks) {
    if (looks % kLooksBetweenStops == 0 && *peers.stop != 0) return;
  }
}

// One thread block computes one row, a thread eight elements of it, as in AddAndNorm.
__global__ void __launch_bounds__(kMaxThreads)
    SumAndNorm(model::NormShape shape, PeerSums peers, const bf16* weight, bf16* residual, bf16* normed) {
  __shared__ float warps[kMaxThreads / kWarp];
  const int element = static_cast<int>(threadIdx.x) * kVector;
  const bool mine = element < shape.hidden;
  float weights[kVector], x[kVector] = {};
  if (mine) model::Load(weight + element, weights);
  model::WaitForEarlierKernels();
  MeetAt(peers, blockIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) ++peers.counts[blockIdx.x];
  model::LetNextKernelStart();
  const int64_t place = static_cast<int64_t>(blockIdx.x) * shape.hidden + element;
  if (mine) {
    model::Load(residual + place, x);
    for (int32_t rank = 0; rank < peers.world; ++rank) {
      float part[kVector];
      LoadPeer(static_cast<const bf16*>(peers.parts[rank]) + place, part);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] += part[i];
    }
    const model::Vector sum = model::Narrow(x);
    model::Write(residual + place, sum);
    model::Widen(sum, x);
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) squares += x[i] * x[i];
  const float scale = rsqrtf(model::BlockSum(squares, warps) / static_cast<float>(shape.hidden) + shape.epsilon);
  if (!mine) return;
  model::ScaleAsRmsNorm(x, scale, weights);
  model::Store(normed + place, x);
}

__global__ void __launch_bounds__(kWarp) Meet(PeerSums peers) {
  const int64_t row = peers.rows_at_most - 1;
  model::WaitForEarlierKernels();
  MeetAt(peers, row);
  __syncthreads();
  if (threadIdx.x == 0) ++peers.counts[row];
  model::LetNextKernelStart();
}

}  // namespace

cudaError_t SumPeersAndNorm(const model::NormShape& shape, const PeerSums& peers, const void* weight, void* residual,
                            void* normed, cudaStream_t stream) {
  const bool fits = shape.rows > 0 && shape.rows < peers.rows_at_most && shape.hidden > 0 &&
                    shape.hidden % kVector == 0 && shape.hidden <= model::kMaxHidden && peers.world <= kMostPeers;
  if (!fits) return cudaErrorInvalidValue;
  const unsigned threads = static_cast<unsigned>(shape.hidden / kVector + kWarp - 1) / kWarp * kWarp;
  return model::LaunchChained(SumAndNorm, dim3(static_cast<unsigned>(shape.rows)), dim3(threads), 0, stream, shape,
                              peers, static_cast<const bf16*>(weight), static_cast<bf16*>(residual),
                              static_cast<bf16*>(normed));
}

cudaError_t MeetPeers(const PeerSums& peers, cudaStream_t stream) {
  return model::LaunchChained(Meet, dim3(1), dim3(kWarp), 0, stream, peers);
}

}  // namespace syncopate::rollouter
