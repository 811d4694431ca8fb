#include <algorithm>

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
// Blocks of these that a multiprocessor runs at once, which bounds their registers, and the most it is given.
constexpr int kAdaptedResident = 4, kMostAdaptedBlocks = model::kMultiprocessors * kAdaptedResident;

struct Layer {
  bf16* keys = nullptr;
  bf16* values = nullptr;
};

__device__ __forceinline__ int32_t FindBlock(const PagedRows& rows, int row, int position) {
  return rows.tables[static_cast<int64_t>(rows.slots[row]) * rows.table_stride + position / kTokensPerBlock];
}

// The offset of a key and value in their block's piece of head 0; the next head is kTokensPerBlock * head_dim further.
__device__ __forceinline__ int64_t GetPlace(const HeadCounts& heads, int64_t block, int position) {
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
  const int64_t place = GetPlace(heads, FindBlock(rows, row, position), position);
  for (int work = static_cast<int>(threadIdx.x); work < rotated + copied; work += static_cast<int>(blockDim.x)) {
    if (work >= rotated) {
      const int head = (work - rotated) / (dim / kVector), element = (work - rotated) % (dim / kVector) * kVector;
      model::Write(layer.values + place + head * kTokensPerBlock * dim + element,
                   model::Read(from + (heads.heads + heads.kv_heads + head) * dim + element));
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

constexpr int kStages = 3;  // of the tiles of a warp

// What a warp has in shared memory of a tile, while other tiles are on their way: two vectors of each of a lane's rows,
// which that lane has copied itself and reads, x a^T, which all lanes read, and the rows' sets.
struct Stage {
  Vector columns[2][adapter_tile::kLaneRows][model::kWarp];
  Vector inner[adapter_tile::kRows][adapter_tile::kDepthVectors];
  int32_t own[adapter_tile::kRows];
};

// Where this lane's rows of a tile belong.
struct Places {
  int positions[adapter_tile::kLaneRows];  // below 0: an empty row, or one behind the last
  int32_t blocks[adapter_tile::kLaneRows];
};

__device__ __forceinline__ Places ReadPlaces(const PagedRows& rows, int first_row) {
  Places places;
#pragma unroll
  for (int i = 0; i < adapter_tile::kLaneRows; ++i) {
    const int row = first_row + adapter_tile::GetLane() / 4 + i * adapter_tile::kRows / 2;
    places.positions[i] = row < rows.rows ? rows.lengths[row] - 1 : -1;
    places.blocks[i] = places.positions[i] < 0 ? 0 : FindBlock(rows, row, places.positions[i]);
  }
  return places;
}

// The adapter of column `column` of a product; -1: none.
__device__ __forceinline__ int FindAdapter(const AdaptedProduct& product, int column) {
  int index = product.count - 1;
  while (index >= 0 && (column < product.adapters[index].begin ||
                        column >= product.adapters[index].begin + product.adapters[index].outputs)) {
    --index;
  }
  return index;
}

// The columns of a head that a warp computes: 32 of the lower half, and the matching ones of the upper half, which begin
// `half` columns further.
struct HeadColumns {
  const bf16* y = nullptr;
  int element = 0;  // this lane's first one in y
  int half = 0;
  int adapter = -1;  // of the head
  bool mine = true;  // false: there is no such head
};

// Begins to copy a tile of rows; `sets`: those of this lane's rows.
__device__ __forceinline__ void CopyTile(const AdaptedProduct& product, const HeadColumns& columns, int first_row,
                                         const int* sets, Stage& stage) {
  const int lane = adapter_tile::GetLane(), stride = product.stride();
#pragma unroll
  for (int i = 0; i < adapter_tile::kLaneRows; ++i) {
    const int row_of_tile = lane / 4 + i * adapter_tile::kRows / 2, row = first_row + row_of_tile;
    const bf16* from = columns.y + static_cast<int64_t>(row) * stride + columns.element;
    const bool copies = columns.mine && row < product.rows;
    adapter_tile::CopyIf(copies, from, &stage.columns[0][i][lane]);
    adapter_tile::CopyIf(copies, from + columns.half, &stage.columns[1][i][lane]);
    adapter_tile::CopyInner(product, columns.mine ? columns.adapter : -1, columns.y, row, sets[i],
                            adapter_tile::GetElement(), &stage.inner[row_of_tile][lane % 4]);
    if (lane % 4 == 0) stage.own[row_of_tile] = sets[i];
  }
  adapter_tile::EndCopies();
}

// The sums of the squares of the heads in this lane's rows. kPairs adjacent warps have a head, and all threads of the
// block must call it if these are several; of_warps then has room for one number of each warp and row.
template <int kPairs>
__device__ __forceinline__ void SumSquaresOfHeads(const float (*halves)[adapter_tile::kLaneRows][kVector],
                                                  float (*of_warps)[adapter_tile::kRows], float* squares) {
  constexpr int kLaneRows = adapter_tile::kLaneRows;
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    squares[i] = SumOverLanes(SumSquares(halves[0][i], halves[1][i]), /*threads=*/4);
  }
  if constexpr (kPairs > 1) {
    const int warp = static_cast<int>(threadIdx.x) / model::kWarp, lane = adapter_tile::GetLane();
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      if (lane % 4 == 0) of_warps[warp][lane / 4 + i * adapter_tile::kRows / 2] = squares[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      squares[i] = 0;
      for (int p = 0; p < kPairs; ++p) {
        squares[i] += of_warps[warp / kPairs * kPairs + p][lane / 4 + i * adapter_tile::kRows / 2];
      }
    }
  }
}

// Norms by `scale` and rotates this lane's part of a head of one row, and writes it to where the head belongs.
template <int kHalf>
__device__ __forceinline__ void WriteHead(const HeadCounts& heads, const AppendInputs& inputs, const Layer& layer,
                                          bf16* queries, int head, int element, int row, int position, int32_t block,
                                          float scale, float* low, float* high) {
  constexpr int kDim = 2 * kHalf;
  const bool query = head < heads.heads, value = head >= heads.heads + heads.kv_heads;
  bf16* to = queries + (static_cast<int64_t>(row) * heads.heads + head) * kDim;
  if (!query) {
    to = (value ? layer.values : layer.keys) + GetPlace(heads, block, position) +
         (head - heads.heads - (value ? heads.kv_heads : 0)) * kTokensPerBlock * kDim;
  }
  if (!value) {
    const bf16* norm = static_cast<const bf16*>(query ? inputs.q_norm : inputs.k_norm);
    if (norm != nullptr) ScaleByNorm(low, high, norm, element, kHalf, scale);
    Rotate(low, high, inputs.rotations + 2 * (static_cast<int64_t>(position) * kHalf + element));
  }
  model::Store(to + element, low);
  model::Store(to + kHalf + element, high);
}

// Does what Append does, after it has added the adapters. A warp computes two tiles of 16 rows (adapter_tile.cuh): 32
// columns of the lower half of a head, and the matching ones of the upper half. It keeps its columns and goes on to
// further rows, so that it reads B once. A head has kPairs warps, which are in one block.
template <int kPairs, bool kDeep>
__global__ void __launch_bounds__(kAdaptedWarps* model::kWarp, kAdaptedResident)
    AddAndAppend(PagedRows rows, HeadCounts heads, AppendInputs inputs, const __grid_constant__ AdaptedProduct product,
                 Layer layer, bf16* queries) {
  constexpr int kHalf = kPairs * adapter_tile::kColumns, kDim = 2 * kHalf, kLaneRows = adapter_tile::kLaneRows;
  static_assert(kAdaptedWarps % kPairs == 0);
  __shared__ Stage all_stages[kAdaptedWarps][kStages];
  __shared__ float all_squares[2][kAdaptedWarps][adapter_tile::kRows];
  const int warp = static_cast<int>(threadIdx.x) / model::kWarp, lane = adapter_tile::GetLane();
  const int head = (static_cast<int>(blockIdx.x) * kAdaptedWarps + warp) / kPairs;
  // The lane's first column in its half of the head.
  const int pair_column = warp % kPairs * adapter_tile::kColumns, element = pair_column + adapter_tile::GetElement();
  const bool mine = head < heads.heads + 2 * heads.kv_heads;
  Stage* const stages = all_stages[warp];
  const int index = FindAdapter(product, head * kDim);
  const int first_column = index < 0 ? 0 : head * kDim - product.adapters[index].begin + pair_column;
  const int step = static_cast<int>(gridDim.y) * adapter_tile::kRows;
  const bf16* y = static_cast<const bf16*>(inputs.qkv);
  const HeadColumns columns{y, head * kDim + element, kHalf, index, mine};
  const auto get_row = [&](int first_row, int i) { return first_row + lane / 4 + i * adapter_tile::kRows / 2; };

  // What the kernels of this pass only read is asked for before they end. The matrix product that is the kernel before
  // this one has begun after everything that wrote it.
  int first_row = static_cast<int>(blockIdx.y) * adapter_tile::kRows;
  int sets[kStages][kLaneRows];
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i)
      sets[stage][i] = adapter_tile::ReadSet(product, get_row(first_row + stage * step, i));
  }
  const int first_set = adapter_tile::ReadSet(product, first_row);
  Places places = ReadPlaces(rows, first_row);
  adapter_tile::Outer outers[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (mine) adapter_tile::ReadFirstOuter(product, index, first_column + half * kHalf, first_set, outers[half]);
  }
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) CopyTile(product, columns, first_row + i * step, sets[i], stages[i]);
  int next[kLaneRows];  // the sets of the rows that are copied next
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) next[i] = sets[kStages - 1][i];
  for (int at = 0, turn = 0; first_row < product.rows; at = (at + 1) % kStages, turn ^= 1, first_row += step) {
    adapter_tile::WaitForCopies<kStages - 2>();
    __syncwarp();  // the warp sees all of this stage, and has read all of the one before
    CopyTile(product, columns, first_row + (kStages - 1) * step, next, stages[(at + kStages - 1) % kStages]);
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      next[i] = adapter_tile::ReadSet(product, get_row(first_row + kStages * step, i));
    }
    const Places now = places;
    places = ReadPlaces(rows, first_row + step);
    const Stage& stage = stages[at];
    const unsigned present = adapter_tile::FindPresent(stage.own);
    float halves[2][kLaneRows][kVector];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Vector base[kLaneRows] = {model::Read(&stage.columns[half][0][lane]),
                                      model::Read(&stage.columns[half][1][lane])};
      adapter_tile::Add<kDeep>(product, mine ? index : -1, y, first_row, stage.own, present,
                               first_column + half * kHalf, base, stage.inner, outers[half], halves[half]);
      // Rounded as the product's result would be.
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) model::Widen(model::Narrow(halves[half][i]), halves[half][i]);
    }
    float squares[kLaneRows] = {};
    // In turns, so that no warp writes what another one still reads.
    if (inputs.q_norm != nullptr) SumSquaresOfHeads<kPairs>(halves, all_squares[turn], squares);
    if (!mine) continue;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      if (now.positions[i] < 0) continue;
      const float scale = rsqrtf(squares[i] / static_cast<float>(kDim) + inputs.epsilon);
      WriteHead<kHalf>(heads, inputs, layer, queries, head, element, get_row(first_row, i), now.positions[i],
                       now.blocks[i], scale, halves[0][i], halves[1][i]);
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
    const int warps = all_heads * heads.head_dim / (2 * adapter_tile::kColumns);
    const int across = (warps + kAdaptedWarps - 1) / kAdaptedWarps;
    const int down =
        std::min((rows.rows + adapter_tile::kRows - 1) / adapter_tile::kRows, std::max(kMostAdaptedBlocks / across, 1));
    const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(down));
    const bool deep = product.rank > adapter_tile::kDepth;
    const auto kernel = heads.head_dim == 64 ? (deep ? AddAndAppend<1, true> : AddAndAppend<1, false>)
                                             : (deep ? AddAndAppend<2, true> : AddAndAppend<2, false>);
    return model::LaunchChained(kernel, grid, dim3(kAdaptedWarps * model::kWarp), 0, stream, rows, heads, inputs,
                                product, place, static_cast<bf16*>(queries));
  }
  const int work = (heads.heads + heads.kv_heads) * (heads.head_dim / 16) + heads.kv_heads * (heads.head_dim / kVector);
  const int threads = (work + model::kWarp - 1) / model::kWarp * model::kWarp;
  return model::LaunchChained(Append, dim3(static_cast<unsigned>(rows.rows)),
                              dim3(static_cast<unsigned>(threads < kMostThreads ? threads : kMostThreads)), 0, stream,
                              rows, heads, inputs, place, static_cast<bf16*>(queries));
}

}  // namespace syncopate::rollouter
