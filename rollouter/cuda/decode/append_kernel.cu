#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/adapter_tile.cuh"
#include "rollouter/cuda/decode/paged_cache.h"

namespace syncopate::rollouter {
namespace {

using model::bf16;
using model::kVector;
using model::Vector;

constexpr int kMostThreads = 256;
constexpr int kAdaptedWarps = 4;  // of a block that adds adapters

struct Layer {
  bf16* keys = nullptr;
  bf16* values = nullptr;
};

// The offset of the row's key and value in their block's piece of head 0; the next head is kTokensPerBlock * head_dim
// further.
__device__ __forceinline__ int64_t FindPlace(const PagedRows& rows, const HeadCounts& heads, int row, int position) {
  const int64_t block =
      rows.tables[static_cast<int64_t>(rows.slots[row]) * rows.table_stride + position / kTokensPerBlock];
  return (block * heads.kv_heads * kTokensPerBlock + position % kTokensPerBlock) * heads.head_dim;
}

__device__ __forceinline__ float SumSquares(const float* low, const float* high) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) squares += low[i] * low[i] + high[i] * high[i];
  return squares;
}

// The sum over `threads` adjacent lanes, a power of two, all of which call this.
__device__ __forceinline__ float SumOverLanes(float value, int threads) {
  const unsigned lane = threadIdx.x % model::kWarp;
  const unsigned neighbours = (threads == model::kWarp ? ~0u : (1u << threads) - 1)
                              << (lane / static_cast<unsigned>(threads) * static_cast<unsigned>(threads));
  for (int offset = threads / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(neighbours, value, offset);
  return value;
}

// Scales a thread's parts of both halves of a head by `scale` and the norm's weights.
__device__ __forceinline__ void ScaleByNorm(float* low, float* high, const bf16* weight, int element, int half,
                                            float scale) {
  float weights[kVector];
  model::Load(weight + element, weights);
  model::ScaleAsRmsNorm(low, scale, weights);
  model::Load(weight + half + element, weights);
  model::ScaleAsRmsNorm(high, scale, weights);
#pragma unroll
  for (int i = 0; i < kVector; ++i) low[i] = model::Round(low[i]), high[i] = model::Round(high[i]);
}

// `rotations`: cosine and sine of the angles of these elements.
__device__ __forceinline__ void Rotate(float* low, float* high, const float* rotations) {
  const float4* pairs = reinterpret_cast<const float4*>(rotations);
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    const float4 two = pairs[i / 2];  // cosine, sine, cosine, sine
    const float a = low[i], b = high[i], c = low[i + 1], d = high[i + 1];
    low[i] = a * two.x - b * two.y, high[i] = b * two.x + a * two.y;
    low[i + 1] = c * two.z - d * two.w, high[i + 1] = d * two.z + c * two.w;
  }
}

// One thread block computes one row. Its work: head_dim / 16 threads for each head to rotate (a thread has eight
// elements of the lower half and the matching eight of the upper half), then head_dim / 8 for each head of values to
// copy.
__global__ void __launch_bounds__(kMostThreads)
    Append(PagedRows rows, HeadCounts heads, AppendInputs inputs, Layer layer, bf16* queries) {
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const int row = static_cast<int>(blockIdx.x);
  const int position = rows.lengths[row] - 1;
  if (position < 0) return;
  const int dim = heads.head_dim, half = dim / 2, threads = half / kVector;
  const int rotated = (heads.heads + heads.kv_heads) * threads, copied = heads.kv_heads * (dim / kVector);
  const bf16* from =
      static_cast<const bf16*>(inputs.qkv) + static_cast<int64_t>(row) * (heads.heads + 2 * heads.kv_heads) * dim;
  const int64_t place = FindPlace(rows, heads, row, position);
  for (int work = static_cast<int>(threadIdx.x); work < rotated + copied; work += static_cast<int>(blockDim.x)) {
    if (work >= rotated) {
      const int head = (work - rotated) / (dim / kVector), element = (work - rotated) % (dim / kVector) * kVector;
      *reinterpret_cast<Vector*>(layer.values + place + head * kTokensPerBlock * dim + element) =
          *reinterpret_cast<const Vector*>(from + (heads.heads + heads.kv_heads + head) * dim + element);
      continue;
    }
    const int head = work / threads, element = work % threads * kVector;
    const bool query = head < heads.heads;
    float low[kVector], high[kVector];
    model::Load(from + head * dim + element, low);
    model::Load(from + head * dim + half + element, high);
    const bf16* norm = static_cast<const bf16*>(query ? inputs.q_norm : inputs.k_norm);
    if (norm != nullptr) {
      const float squares = SumOverLanes(SumSquares(low, high), threads);
      ScaleByNorm(low, high, norm, element, half, rsqrtf(squares / static_cast<float>(dim) + inputs.epsilon));
    }
    Rotate(low, high, inputs.rotations + 2 * (static_cast<int64_t>(position) * half + element));
    bf16* to = query ? queries + (static_cast<int64_t>(row) * heads.heads + head) * dim
                     : layer.keys + place + (head - heads.heads) * kTokensPerBlock * dim;
    model::Store(to + element, low);
    model::Store(to + half + element, high);
  }
}

// Does what Append does, after it has added the adapters. A warp computes a head of 16 rows: kPairs tiles
// (adapter_tile.cuh) of the lower half of the head, and as many of the upper half.
template <int kPairs>
__global__ void __launch_bounds__(kAdaptedWarps* model::kWarp)
    AddAndAppend(PagedRows rows, HeadCounts heads, AppendInputs inputs, const __grid_constant__ AdaptedProduct product,
                 Layer layer, bf16* queries) {
  constexpr int kHalf = kPairs * adapter_tile::kColumns, kDim = 2 * kHalf, kLaneRows = adapter_tile::kLaneRows;
  const int head = static_cast<int>(blockIdx.x) * kAdaptedWarps + static_cast<int>(threadIdx.x) / model::kWarp;
  const int element = adapter_tile::GetElement();
  const adapter_tile::Rows tile = adapter_tile::ReadRows(product, static_cast<int>(blockIdx.y) * adapter_tile::kRows);
  int index = product.count - 1;
  while (index >= 0 && (head * kDim < product.adapters[index].begin ||
                        head * kDim >= product.adapters[index].begin + product.adapters[index].outputs)) {
    --index;
  }
  // What the kernels of this pass only read is asked for before they end, B of all tiles at once. The matrix product
  // that is the kernel before this one has begun after everything that wrote it.
  int positions[kLaneRows];
  int64_t places[kLaneRows];
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    positions[i] = tile.at[i] < rows.rows ? rows.lengths[tile.at[i]] - 1 : -1;
    places[i] = positions[i] < 0 ? 0 : FindPlace(rows, heads, tile.at[i], positions[i]);
  }
  adapter_tile::Outer outers[2][kPairs];
  const int first_column = index < 0 ? 0 : head * kDim - product.adapters[index].begin;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      adapter_tile::ReadFirstOuter(product, index, first_column + half * kHalf + p * adapter_tile::kColumns, tile,
                                   outers[half][p]);
    }
  }
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  if (head >= heads.heads + 2 * heads.kv_heads) return;
  const bf16* y = static_cast<const bf16*>(inputs.qkv);
  const int stride = adapter_tile::GetStride(product);
  // Halves of the head, rounded as the product's result would be.
  Vector halves[2][kPairs][kLaneRows], inner[kLaneRows];
  adapter_tile::ReadInner(product, index, y, tile, /*depth=*/0, inner);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      adapter_tile::ReadColumns(product, y + head * kDim + half * kHalf, stride, tile, p * adapter_tile::kColumns,
                                kHalf, halves[half][p]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      Vector left[kLaneRows] = {inner[0], inner[1]};
      float values[kLaneRows][kVector];
      adapter_tile::Add(product, index, y, tile, first_column + half * kHalf + p * adapter_tile::kColumns,
                        halves[half][p], left, outers[half][p], values);
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) halves[half][p][i] = model::Narrow(values[i]);
    }
  }
  const bool query = head < heads.heads, value = head >= heads.heads + heads.kv_heads;
  const bf16* norm = static_cast<const bf16*>(query ? inputs.q_norm : inputs.k_norm);
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    if (positions[i] < 0) continue;
    bf16* to = queries + (static_cast<int64_t>(tile.at[i]) * heads.heads + head) * kDim;
    if (!query) {
      to = (value ? layer.values : layer.keys) + places[i] +
           (head - heads.heads - (value ? heads.kv_heads : 0)) * kTokensPerBlock * kDim;
    }
    float low[kPairs][kVector], high[kPairs][kVector], squares = 0;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      model::Widen(halves[0][p][i], low[p]);
      model::Widen(halves[1][p][i], high[p]);
      squares += SumSquares(low[p], high[p]);
    }
    if (!value && norm != nullptr) {
      const float scale = rsqrtf(SumOverLanes(squares, /*threads=*/4) / static_cast<float>(kDim) + inputs.epsilon);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        ScaleByNorm(low[p], high[p], norm, p * adapter_tile::kColumns + element, kHalf, scale);
      }
    }
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int at = p * adapter_tile::kColumns + element;
      if (!value) Rotate(low[p], high[p], inputs.rotations + 2 * (static_cast<int64_t>(positions[i]) * kHalf + at));
      adapter_tile::Write(to + at, low[p]);
      adapter_tile::Write(to + kHalf + at, high[p]);
    }
  }
}

}  // namespace

cudaError_t RotateAndAppend(const PagedRows& rows, const HeadCounts& heads, const AppendInputs& inputs,
                            const BlockStorage& storage, int32_t layer, void* queries, cudaStream_t stream) {
  const bool fits = heads.head_dim == 32 || heads.head_dim == 64 || heads.head_dim == 128 || heads.head_dim == 256;
  if (!fits || rows.rows <= 0 || layer < 0 || layer >= storage.layers) return cudaErrorInvalidValue;
  const int64_t layer_elements = storage.layer_pieces * heads.kv_heads * kTokensPerBlock * heads.head_dim;
  const Layer place = {static_cast<bf16*>(storage.keys) + layer * layer_elements,
                       static_cast<bf16*>(storage.values) + layer * layer_elements};
  if (inputs.adapters != nullptr) {
    const AdaptedProduct& product = *inputs.adapters;
    const int all_heads = heads.heads + 2 * heads.kv_heads;
    const bool adds = (heads.head_dim == 64 || heads.head_dim == 128) && product.Fits() && product.rows == rows.rows &&
                      product.columns == all_heads * heads.head_dim;
    if (!adds) return cudaErrorInvalidValue;
    const dim3 grid(static_cast<unsigned>((all_heads + kAdaptedWarps - 1) / kAdaptedWarps),
                    static_cast<unsigned>((rows.rows + adapter_tile::kRows - 1) / adapter_tile::kRows));
    return model::LaunchChained(heads.head_dim == 64 ? AddAndAppend<1> : AddAndAppend<2>, grid,
                                dim3(kAdaptedWarps * model::kWarp), 0, stream, rows, heads, inputs, product, place,
                                static_cast<bf16*>(queries));
  }
  const int work = (heads.heads + heads.kv_heads) * (heads.head_dim / 16) + heads.kv_heads * (heads.head_dim / kVector);
  const int threads = (work + model::kWarp - 1) / model::kWarp * model::kWarp;
  return model::LaunchChained(Append, dim3(static_cast<unsigned>(rows.rows)),
                              dim3(static_cast<unsigned>(threads < kMostThreads ? threads : kMostThreads)), 0, stream,
                              rows, heads, inputs, place, static_cast<bf16*>(queries));
}

}  // namespace syncopate::rollouter
