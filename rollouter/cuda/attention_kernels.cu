#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "rollouter/cuda/attention_kernels.h"

namespace syncopate::rollouter {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 4;                      // of one block: one query head of one row
constexpr int kPerLane = kMaxHeadDim / kWarp;  // elements of a head that a lane holds, at most
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kStoreThreads = 256;

__device__ float Widen(float x) { return x; }
__device__ float Widen(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
__device__ T Narrow(float x);
template <>
__device__ float Narrow<float>(float x) {
  return x;
}
template <>
__device__ __nv_bfloat16 Narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// The sum over the warp's lanes, the same bits in each of them.
__device__ float WarpSum(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// Where token `t` of the sequence with `blocks` begins.
__device__ int64_t GetPlace(const RowTable& table, const CacheLayer& cache, const int32_t* blocks, int64_t t) {
  return blocks[t / table.block_tokens] * cache.block_stride + t % table.block_tokens * cache.position_stride;
}

template <typename T>
__global__ void Store(RowTable table, CacheLayer cache, const T* k, const T* v) {
  const int64_t row = blockIdx.x;
  const int32_t* blocks = table.blocks + table.table[row] * table.table_stride;
  const int64_t to = GetPlace(table, cache, blocks, table.position[row]);
  const int64_t from = row * cache.position_stride;
  for (int64_t i = threadIdx.x; i < cache.position_stride; i += blockDim.x) {
    static_cast<T*>(cache.keys)[to + i] = k[from + i];
    static_cast<T*>(cache.values)[to + i] = v[from + i];
  }
}

// Softmax-weighted values of some positions, in the form that can be merged (Milakov and Gimelshein, arXiv 1805.02867):
// the highest score, the sum of exp(score - highest), and the sum of exp(score - highest) * value. Each lane holds the
// elements lane, lane + 32, .. of the last one.
struct Partial {
  float highest = -INFINITY;
  float total = 0;
  float values[kPerLane] = {};
};

// The positions warp, warp + kWarps, .. of the row's own; `begin`: of its head within a position.
template <typename T>
__device__ Partial AttendPart(const RowTable& table, const CacheLayer& cache, const int32_t* blocks, int64_t begin,
                              int64_t length, const float* query, int head_dim, int warp, int lane) {
  Partial part;
  for (int64_t t = warp; t < length; t += kWarps) {
    const int64_t place = GetPlace(table, cache, blocks, t) + begin;
    const T* key = static_cast<const T*>(cache.keys) + place;
    const T* value = static_cast<const T*>(cache.values) + place;
    float score = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int element = lane + i * kWarp;
      if (element < head_dim) score += query[i] * Widen(key[element]);
    }
    score = WarpSum(score);
    const float highest = fmaxf(part.highest, score);
    const float kept = expf(part.highest - highest);  // 0 at the first position: exp(-inf)
    const float weight = expf(score - highest);
    part.highest = highest;
    part.total = part.total * kept + weight;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int element = lane + i * kWarp;
      if (element < head_dim) part.values[i] = part.values[i] * kept + weight * Widen(value[element]);
    }
  }
  return part;
}

// Grid (rows, heads), block (kWarp, kWarps).
template <typename T>
__global__ void Attend(RowTable table, CacheLayer cache, HeadShape shape, const T* q, T* out, float scale) {
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y, warp = threadIdx.y, lane = threadIdx.x;
  const int64_t length = table.position[row] + 1;
  const int32_t* blocks = table.blocks + table.table[row] * table.table_stride;
  const int64_t begin = static_cast<int64_t>(head / (shape.heads / shape.kv_heads)) * shape.head_dim;
  const int64_t query_begin = (row * shape.heads + head) * shape.head_dim;
  float query[kPerLane] = {};
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int element = lane + i * kWarp;
    if (element < shape.head_dim) query[i] = scale * Widen(q[query_begin + element]);
  }
  Partial part = AttendPart<T>(table, cache, blocks, begin, length, query, shape.head_dim, warp, lane);

  __shared__ float highest[kWarps], total[kWarps];
  __shared__ float values[kWarps][kMaxHeadDim];
  if (lane == 0) {
    highest[warp] = part.highest;
    total[warp] = part.total;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) values[warp][lane + i * kWarp] = part.values[i];
  __syncthreads();

  // Merged in the warps' order. Warp 0 has had position 0, so `peak` is finite; a warp without a position weighs 0.
  float peak = highest[0];
  for (int w = 1; w < kWarps; ++w) peak = fmaxf(peak, highest[w]);
  float weights[kWarps], sum = 0;
  for (int w = 0; w < kWarps; ++w) {
    weights[w] = expf(highest[w] - peak);
    sum += weights[w] * total[w];
  }
  for (int element = warp * kWarp + lane; element < shape.head_dim; element += kWarps * kWarp) {
    float value = 0;
    for (int w = 0; w < kWarps; ++w) value += weights[w] * values[w][element];
    out[query_begin + element] = Narrow<T>(value / sum);
  }
}

template <typename T>
cudaError_t LaunchStore(const RowTable& table, const CacheLayer& cache, const void* k, const void* v,
                        cudaStream_t stream) {
  Store<T><<<static_cast<unsigned>(table.rows), kStoreThreads, 0, stream>>>(table, cache, static_cast<const T*>(k),
                                                                            static_cast<const T*>(v));
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchAttend(const RowTable& table, const CacheLayer& cache, const HeadShape& shape, const void* q,
                         void* out, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(table.rows), static_cast<unsigned>(shape.heads));
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  Attend<T><<<grid, dim3(kWarp, kWarps), 0, stream>>>(table, cache, shape, static_cast<const T*>(q),
                                                      static_cast<T*>(out), scale);
  return cudaGetLastError();
}

}  // namespace

cudaError_t StoreRows(CacheElement element, const RowTable& table, const CacheLayer& cache, const void* k,
                      const void* v, cudaStream_t stream) {
  return element == CacheElement::kFloat32 ? LaunchStore<float>(table, cache, k, v, stream)
                                           : LaunchStore<__nv_bfloat16>(table, cache, k, v, stream);
}

cudaError_t AttendRows(CacheElement element, const RowTable& table, const CacheLayer& cache, const HeadShape& shape,
                       const void* q, void* out, cudaStream_t stream) {
  if (shape.head_dim > kMaxHeadDim) return cudaErrorInvalidValue;
  return element == CacheElement::kFloat32 ? LaunchAttend<float>(table, cache, shape, q, out, stream)
                                           : LaunchAttend<__nv_bfloat16>(table, cache, shape, q, out, stream);
}

}  // namespace syncopate::rollouter
