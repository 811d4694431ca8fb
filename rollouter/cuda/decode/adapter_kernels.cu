#include "rollouter/cuda/decode/adapter_kernels.h"

#include <algorithm>

#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/adapter_tile.cuh"

namespace syncopate::rollouter {
namespace {

using adapter_tile::CountTiles;
using adapter_tile::kColumns;
using adapter_tile::kDepthVectors;
using adapter_tile::kLaneRows;
using adapter_tile::kRows;
using adapter_tile::Outer;
using adapter_tile::RowSets;
using model::bf16;
using model::kMultiprocessors;
using model::kVector;
using model::Vector;

// The warps of a block have adjacent columns of the same rows. A warp keeps its columns and goes on to further rows, so
// that it reads B once.
constexpr int kWarps = 4, kThreads = kWarps * model::kWarp;
constexpr int kBlockColumns = kWarps * kColumns, kBlockVectors = kBlockColumns / kVector;
// Blocks that a multiprocessor runs at once, which bounds their registers, and the most tiles of rows of a block: each
// block reads B once, but with more tiles a GPU's last blocks end too far apart.
constexpr int kAddResident = 5, kMostAddTiles = 64, kAddStages = 4;
constexpr int kActivateResident = 4, kMostActivateTiles = 16, kActivateStages = 4;

// What a block has of 16 rows in shared memory, while other rows are on their way: two arrays' columns, and x a^T of
// kAdapters adapters.
template <int kAdapters>
struct Stage {
  Vector columns[2][kRows][kBlockVectors];
  Vector inner[kAdapters][kRows][kDepthVectors];
};

// The place of a row's vector of columns. What eight lanes read at once must lie in different banks: four vectors of
// each of two adjacent rows.
__device__ __forceinline__ unsigned PlaceColumn(unsigned row, unsigned vector) { return vector ^ row % 2 * 4; }

// The tiles of a block of `all`, of which the blocks of a column take one after the other.
__device__ __forceinline__ int CountOwnTiles(int all) {
  return (all - static_cast<int>(blockIdx.y) + static_cast<int>(gridDim.y) - 1) / static_cast<int>(gridDim.y);
}

// Which vectors of columns a thread copies to a stage: one of each of two rows, so that a warp reads whole lines of
// memory.
struct CopiedPlaces {
  static constexpr unsigned kCopiedRows = kThreads / kBlockVectors;
  static_assert(kCopiedRows * kLaneRows == kRows && kCopiedRows % 2 == 0);

  // Both rows have the vector in the same place.
  const unsigned row = threadIdx.x / kBlockVectors, vector = threadIdx.x % kBlockVectors;
  const unsigned place = PlaceColumn(row, vector);

  // Begins to copy this thread's vectors of a tile, the upper row's from `from`; zeros for a row that is not among the
  // `left` rows from the upper one on.
  template <int kAdapters>
  __device__ __forceinline__ void Copy(const bf16* from, int64_t stride, int left, int which,
                                       Stage<kAdapters>& stage) const {
#pragma unroll
    for (unsigned i = 0; i < kLaneRows; ++i) {
      adapter_tile::CopyIf(left > static_cast<int>(i * kCopiedRows), from + i * kCopiedRows * stride,
                           &stage.columns[which][row + i * kCopiedRows][place]);
    }
  }
};

// The vectors of this lane's columns in its two rows.
template <int kAdapters>
__device__ __forceinline__ void ReadColumns(const Stage<kAdapters>& stage, int which, Vector* columns) {
  const unsigned lane = threadIdx.x % model::kWarp, row = lane / 4;
  const unsigned vector = PlaceColumn(row, threadIdx.x / model::kWarp * (kColumns / kVector) + lane % 4);
#pragma unroll
  for (unsigned i = 0; i < kLaneRows; ++i) columns[i] = model::Read(&stage.columns[which][row + i * kRows / 2][vector]);
}

// The columns of a block: those from `first` on of what an adapter adds to.
struct BlockColumns {
  int adapter = 0;
  int first = 0;
};

// The adapter to whose columns this block adds, and the block's first column among them.
__device__ __forceinline__ BlockColumns FindColumns(const AdaptedProduct& product) {
  BlockColumns found{0, static_cast<int>(blockIdx.x) * kBlockColumns};
  for (; found.adapter + 1 < product.count; ++found.adapter) {
    const int outputs = product.adapters[found.adapter].outputs;
    const int columns = (outputs + kBlockColumns - 1) / kBlockColumns * kBlockColumns;
    if (found.first < columns) break;
    found.first -= columns;
  }
  return found;
}

// values += this lane's vectors of `others`, one of each of its rows.
__device__ __forceinline__ void AddVectors(const Vector* others, float (*values)[kVector]) {
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    float other[kVector];
    model::Widen(others[i], other);
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[i][j] += other[j];
  }
}

template <bool kDeep>
__global__ void __launch_bounds__(kThreads, kAddResident)
    Add(const __grid_constant__ AdaptedProduct product, const bf16* y, const bf16* added, bf16* out,
        int32_t out_stride) {
  __shared__ Stage<1> stages[kAddStages];
  __shared__ RowSets<kMostAddTiles + kAddStages> sets;
  const BlockColumns columns = FindColumns(product);
  const int index = columns.adapter, first_column = columns.first;
  const int begin = product.adapters[index].begin, outputs = product.adapters[index].outputs;
  const int lane = adapter_tile::GetLane(), row = lane / 4;
  const int column = first_column + static_cast<int>(threadIdx.x) / model::kWarp * kColumns;
  const int element = column + adapter_tile::GetElement();
  // The last rows come first: they are what the product before has left in the cache.
  const int stride = product.stride(), step = -static_cast<int>(gridDim.y) * kRows;
  const int all_tiles = (product.rows + kRows - 1) / kRows, tiles = CountOwnTiles(all_tiles);
  const int first_row = (all_tiles - 1 - static_cast<int>(blockIdx.y)) * kRows;
  const int first_set = adapter_tile::ReadSet(product, first_row);
  adapter_tile::ReadRowSets(product, first_row, step, tiles + kAddStages, sets);
  Outer outer;
  if (column < outputs) adapter_tile::ReadFirstOuter(product, index, column, first_set, outer);
  __syncthreads();
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();

  const CopiedPlaces copied;
  const int copied_element = first_column + static_cast<int>(copied.vector) * kVector;
  // A row of x a^T has kDepthVectors threads.
  const int inner_row = static_cast<int>(threadIdx.x) / kDepthVectors;
  const int inner_vector = static_cast<int>(threadIdx.x) % kDepthVectors;
  int row_to_copy = first_row;
  const auto copy = [&](int tile) {
    Stage<1>& stage = stages[tile % kAddStages];
    const int upper = row_to_copy + static_cast<int>(copied.row);
    const int left = copied_element < outputs && row_to_copy >= 0 ? product.rows - upper : 0;
    copied.Copy(y + static_cast<int64_t>(upper) * stride + begin + copied_element, stride, left, 0, stage);
    if (added != nullptr) {
      copied.Copy(added + static_cast<int64_t>(upper) * out_stride + begin + copied_element, out_stride, left, 1,
                  stage);
    }
    if (inner_row < kRows) {
      adapter_tile::CopyInner(product, index, y, row_to_copy + inner_row, sets.own[tile][inner_row],
                              inner_vector * kVector, &stage.inner[0][inner_row][inner_vector]);
    }
    adapter_tile::EndCopies();
    row_to_copy += step;
  };
#pragma unroll
  for (int i = 0; i + 1 < kAddStages; ++i) copy(i);
  bf16* to = out + static_cast<int64_t>(first_row + row) * out_stride + begin + element;
  const int64_t to_step = static_cast<int64_t>(step) * out_stride;
  int row_of_tile = first_row;
  for (int tile = 0; tile < tiles; ++tile, row_of_tile += step, to += to_step) {
    adapter_tile::WaitForCopies<kAddStages - 2>();
    __syncthreads();  // the block sees all of this stage, and has read all of the one before
    copy(tile + kAddStages - 1);
    if (column >= outputs) continue;
    const Stage<1>& stage = stages[tile % kAddStages];
    Vector base[kLaneRows];
    ReadColumns(stage, 0, base);
    float values[kLaneRows][kVector];
    adapter_tile::Add<kDeep>(product, index, y, row_of_tile, sets.own[tile], sets.present[tile], column, base,
                             stage.inner[0], outer, values);
    if (added != nullptr) {
      Vector others[kLaneRows];
      ReadColumns(stage, 1, others);
      AddVectors(others, values);
    }
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      if (element < outputs && row_of_tile + row + i * kRows / 2 < product.rows) {
        model::Store(to + i * kRows / 2 * out_stride, values[i]);
      }
    }
  }
}

// The adapter of the half of a product that begins at column `begin`; -1: none.
__device__ __forceinline__ int FindAdapter(const AdaptedProduct& product, int begin) {
  for (int index = 0; index < product.count; ++index) {
    if (product.adapters[index].begin == begin) return index;
  }
  return -1;
}

// gate / (1 + exp(-gate)) by the approximations of __fdividef and __expf that flush denormal numbers to 0, which do not
// reach the result.
__device__ __forceinline__ float Silu(float gate) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(gate * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return gate * inverse;
}

__device__ __forceinline__ void WriteActivated(bf16* to, const float* gate, const float* up) {
  Vector vector;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(gate[2 * i], gate[2 * i + 1]);
    const unsigned bits = *reinterpret_cast<const unsigned*>(&rounded);
    const float low = __uint_as_float(bits << 16), high = __uint_as_float(bits & 0xffff0000u);
    vector.pairs[i] =
        __hmul2(__floats2bfloat162_rn(Silu(low), Silu(high)), __floats2bfloat162_rn(up[2 * i], up[2 * i + 1]));
  }
  model::Write(to, vector);
}

// What a block of Activate has in shared memory.
struct ActivateShared {
  Stage<2> stages[kActivateStages];  // gates and ups
  RowSets<kMostActivateTiles + kActivateStages> sets;
};

template <bool kDeep>
__global__ void __launch_bounds__(kThreads, kActivateResident)
    Activate(const __grid_constant__ AdaptedProduct product, int32_t width, const bf16* y, bf16* activated) {
  extern __shared__ ActivateShared all_shared[];
  ActivateShared& shared = all_shared[0];
  const int stride = product.stride(), step = static_cast<int>(gridDim.y) * kRows;
  const int lane = adapter_tile::GetLane(), row = lane / 4;
  const int first_column = static_cast<int>(blockIdx.x) * kBlockColumns;
  const int column = first_column + static_cast<int>(threadIdx.x) / model::kWarp * kColumns;
  const int element = column + adapter_tile::GetElement();
  const int adapters[2] = {FindAdapter(product, 0), FindAdapter(product, width)};
  const int tiles = CountOwnTiles((product.rows + kRows - 1) / kRows), first_row = static_cast<int>(blockIdx.y) * kRows;
  const int first_set = adapter_tile::ReadSet(product, first_row);
  adapter_tile::ReadRowSets(product, first_row, step, tiles + kActivateStages, shared.sets);
  Outer outers[2];
  if (column < width) {
    adapter_tile::ReadFirstOuter(product, adapters[0], column, first_set, outers[0]);
    adapter_tile::ReadFirstOuter(product, adapters[1], column, first_set, outers[1]);
  }
  __syncthreads();
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();

  const CopiedPlaces copied;
  const int copied_element = first_column + static_cast<int>(copied.vector) * kVector;
  // Each thread copies one vector of x a^T: of the gate's adapter or of the up's.
  static_assert(2 * kRows * kDepthVectors == kThreads);
  const int inner_half = static_cast<int>(threadIdx.x) / (kRows * kDepthVectors);
  const int inner_row = static_cast<int>(threadIdx.x) / kDepthVectors % kRows;
  const int inner_vector = static_cast<int>(threadIdx.x) % kDepthVectors;
  const int inner_adapter = inner_half == 0 ? adapters[0] : adapters[1];
  int row_to_copy = first_row;
  const bf16* from = y + static_cast<int64_t>(first_row + static_cast<int>(copied.row)) * stride + copied_element;
  const int64_t from_step = static_cast<int64_t>(step) * stride;
  const auto copy = [&](int tile) {
    Stage<2>& stage = shared.stages[tile % kActivateStages];
    const int left = copied_element < width ? product.rows - row_to_copy - static_cast<int>(copied.row) : 0;
    copied.Copy(from, stride, left, 0, stage);
    copied.Copy(from + width, stride, left, 1, stage);
    adapter_tile::CopyInner(product, inner_adapter, y, row_to_copy + inner_row, shared.sets.own[tile][inner_row],
                            inner_vector * kVector, &stage.inner[inner_half][inner_row][inner_vector]);
    adapter_tile::EndCopies();
    row_to_copy += step, from += from_step;
  };
#pragma unroll
  for (int i = 0; i + 1 < kActivateStages; ++i) copy(i);
  bf16* to = activated + static_cast<int64_t>(first_row + row) * width + element;
  const int64_t to_step = static_cast<int64_t>(step) * width;
  int left = element < width ? product.rows - first_row - row : 0;  // rows from the lane's upper row on
  for (int tile = 0; tile < tiles; ++tile, left -= step, to += to_step) {
    adapter_tile::WaitForCopies<kActivateStages - 2>();
    __syncthreads();  // the block sees all of this stage, and has read all of the one before
    copy(tile + kActivateStages - 1);
    if (column >= width) continue;
    const Stage<2>& stage = shared.stages[tile % kActivateStages];
    float values[2][kLaneRows][kVector];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Vector base[kLaneRows];
      ReadColumns(stage, half, base);
      adapter_tile::Add<kDeep>(product, adapters[half], y, first_row + tile * step, shared.sets.own[tile],
                               shared.sets.present[tile], column, base, stage.inner[half], outers[half], values[half]);
    }
    if (left > 0) WriteActivated(to, values[0][0], values[1][0]);
    if (left > kRows / 2) WriteActivated(to + kRows / 2 * width, values[0][1], values[1][1]);
  }
}

constexpr int kCopyThreads = 256, kCopyBlocks = 16;  // of one copy

__global__ void __launch_bounds__(kCopyThreads) Copy(const AdapterCopy* copies) {
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const AdapterCopy copy = copies[blockIdx.y];
  const int4* from = static_cast<const int4*>(copy.from);
  int4* to = static_cast<int4*>(copy.to);
  const int64_t vectors = copy.bytes / int64_t{sizeof(int4)};
  for (int64_t i = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x; i < vectors;
       i += int64_t{gridDim.x} * kCopyThreads) {
    to[i] = from[i];
  }
}

bool IsDeep(const AdaptedProduct& product) { return product.rank > adapter_tile::kDepth; }

// `across` blocks for each tile of rows. Chooses the fewest tiles a block with which all blocks run at once. If that is
// more than `most_tiles`, two, three or more such waves of blocks run.
dim3 GetGrid(int32_t rows, int32_t across, int32_t resident, int32_t most_tiles) {
  const int32_t tiles = CountTiles(rows, kRows), at_once = kMultiprocessors * resident;
  int32_t of_block = CountTiles(tiles, std::max(at_once / across, 1));
  for (int32_t times = 2; of_block > most_tiles; ++times) {
    of_block = CountTiles(tiles, std::max(at_once * times / across, 1));
  }
  return dim3(static_cast<unsigned>(across), static_cast<unsigned>(CountTiles(tiles, of_block)));
}

}  // namespace

bool AdaptedProduct::Fits() const {
  bool fits = rows > 0 && count > 0 && count <= kMostAdapters && rank > 0 && rank % kVector == 0 &&
              columns % kVector == 0 && places > 0 && places <= kAdapterPlaces && sets != nullptr;
  for (int32_t i = 0; fits && i < count; ++i) {
    fits = adapters[i].outputs > 0 && adapters[i].outputs % kVector == 0 && adapters[i].begin % kVector == 0;
  }
  return fits;
}

cudaError_t AddAdapters(const AdaptedProduct& product, const void* y, const void* added, void* out, int32_t out_stride,
                        cudaStream_t stream) {
  if (!product.Fits() || out_stride % kVector != 0 || out == y) return cudaErrorInvalidValue;
  int32_t across = 0;
  for (int32_t i = 0; i < product.count; ++i) across += CountTiles(product.adapters[i].outputs, kBlockColumns);
  return model::LaunchChained(IsDeep(product) ? Add<true> : Add<false>,
                              GetGrid(product.rows, across, kAddResident, kMostAddTiles), dim3(kThreads), 0, stream,
                              product, static_cast<const bf16*>(y), static_cast<const bf16*>(added),
                              static_cast<bf16*>(out), out_stride);
}

cudaError_t CopyAdapters(const AdapterCopy* copies, int32_t count, cudaStream_t stream) {
  if (count <= 0) return count == 0 ? cudaSuccess : cudaErrorInvalidValue;
  return model::LaunchChained(Copy, dim3(kCopyBlocks, static_cast<unsigned>(count)), dim3(kCopyThreads), 0, stream,
                              copies);
}

cudaError_t AddAdaptersAndSwiGlu(const AdaptedProduct& product, int32_t width, const void* y, void* activated,
                                 cudaStream_t stream) {
  bool halves = width > 0 && width % kVector == 0 && product.columns == 2 * width;
  for (int32_t i = 0; halves && i < product.count; ++i) {
    const AdapterColumns& adapter = product.adapters[i];
    halves = adapter.outputs == width && (adapter.begin == 0 || adapter.begin == width);
  }
  if (!product.Fits() || !halves) return cudaErrorInvalidValue;
  return model::LaunchChained(
      IsDeep(product) ? Activate<true> : Activate<false>,
      GetGrid(product.rows, CountTiles(width, kBlockColumns), kActivateResident, kMostActivateTiles), dim3(kThreads),
      sizeof(ActivateShared), stream, product, width, static_cast<const bf16*>(y), static_cast<bf16*>(activated));
}

}  // namespace syncopate::rollouter
