#include "rollouter/cuda/decode/adapter_kernels.h"

#include <algorithm>

#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/adapter_tile.cuh"

namespace syncopate::rollouter {
namespace {

using adapter_tile::Inner;
using adapter_tile::kColumns;
using adapter_tile::kLaneRows;
using adapter_tile::kRows;
using adapter_tile::Outer;
using adapter_tile::Sets;
using model::bf16;
using model::kVector;
using model::Vector;

// The warps of a block have adjacent columns of the same rows. A warp keeps its columns and goes on to further rows, so
// that it reads B once.
constexpr int kWarps = 4, kThreads = kWarps * model::kWarp;
// Blocks that a multiprocessor runs at once, which bounds their registers, and the most tiles of rows of a block: with
// more, a GPU's last blocks end too far apart.
constexpr int kMultiprocessors = 132;
constexpr int kAddResident = 5, kMostAddTiles = 64;
constexpr int kActivateResident = 4, kMostActivateTiles = 6;

__device__ __forceinline__ int GetWarp() {
  return static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / model::kWarp;
}

constexpr int kAddStages = 3;

template <bool kDeep>
__global__ void __launch_bounds__(kThreads, kAddResident)
    Add(const __grid_constant__ AdaptedProduct product, const bf16* y, const bf16* added, bf16* out,
        int32_t out_stride) {
  __shared__ adapter_tile::Stage all_stages[kWarps][kAddStages];
  adapter_tile::Stage* const stages = all_stages[threadIdx.x / model::kWarp];
  // The last rows come first: they are what the product before has left in the cache.
  const int stride = adapter_tile::GetStride(product), step = -static_cast<int>(gridDim.y) * kRows;
  const int lane = adapter_tile::GetLane(), row = lane / 4;
  // The adapter of this warp's columns.
  int index = 0, column = GetWarp() * kColumns;
  for (; index < product.count; ++index) {
    const int columns = (product.adapters[index].outputs + kColumns - 1) / kColumns * kColumns;
    if (column < columns) break;
    column -= columns;
  }
  const int tiles = (product.rows + kRows - 1) / kRows;
  int first_row = (tiles - 1 - static_cast<int>(blockIdx.y)) * kRows, row_of_set = first_row + row;
  const auto read_sets = [&](int* sets) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) sets[i] = adapter_tile::ReadSet(product, row_of_set + i * kRows / 2);
    row_of_set += step;
  };
  int ahead[kAddStages][kLaneRows];
#pragma unroll
  for (int i = 0; i < kAddStages; ++i) read_sets(ahead[i]);
  Sets sets = adapter_tile::ReadSets(product, first_row);
  Outer outer;
  if (index < product.count) adapter_tile::ReadFirstOuter(product, index, column, sets, outer);
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  if (index == product.count) return;
  const int begin = product.adapters[index].begin, element = column + adapter_tile::GetElement();
  const bool inside = element < product.adapters[index].outputs;
  const int64_t place = static_cast<int64_t>(first_row + row) * out_stride + begin + element;
  const int64_t out_step = static_cast<int64_t>(step) * out_stride;
  const bf16* from = y + static_cast<int64_t>(first_row + row) * stride + begin + element;
  int64_t added_place = place;
  bf16* to = out + place;
  // The rows from the lane's upper row on, of those that are copied next and of those that are computed.
  int row_to_copy = first_row, left_to_copy = product.rows - first_row - row, left = left_to_copy;
  const auto copy = [&](adapter_tile::Stage& stage, const int* own_sets) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const bool copies = inside && row_to_copy >= 0 && left_to_copy > i * kRows / 2;
      adapter_tile::CopyIf(copies, from + i * kRows / 2 * stride, &stage.columns[0][i][lane]);
      if (added != nullptr) {
        adapter_tile::CopyIf(copies, added + added_place + i * kRows / 2 * out_stride, &stage.columns[1][i][lane]);
      }
    }
    adapter_tile::CopyInner(product, index, y, row_to_copy, own_sets, stage);
    adapter_tile::EndCopies();
    from += static_cast<int64_t>(step) * stride, added_place += out_step;
    row_to_copy += step, left_to_copy -= step;
  };
#pragma unroll
  for (int i = 0; i + 1 < kAddStages; ++i) copy(stages[i], ahead[i]);
  int next[kLaneRows] = {ahead[kAddStages - 1][0], ahead[kAddStages - 1][1]};
  adapter_tile::Stage *reading = stages, *writing = stages + kAddStages - 1;
  for (; first_row >= 0; first_row += step) {
    adapter_tile::WaitForCopies<kAddStages - 2>();
    __syncwarp();  // the warp sees all of this stage, and has read all of the one before
    copy(*writing, next);
    read_sets(next);
    adapter_tile::Stage& stage = *reading;
    writing = reading;
    reading = reading + 1 < stages + kAddStages ? reading + 1 : stages;
    const Inner inner = adapter_tile::LoadInner(stage, sets);
    const Vector base[kLaneRows] = {model::Read(&stage.columns[0][0][lane]), model::Read(&stage.columns[0][1][lane])};
    float values[kLaneRows][kVector];
    adapter_tile::Add<kDeep>(product, index, y, first_row, sets, column, base, inner, outer, values);
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      if (!inside || left <= i * kRows / 2) continue;
      if (added != nullptr) {
        float others[kVector];
        model::Load(reinterpret_cast<const bf16*>(&stage.columns[1][i][lane]), others);
#pragma unroll
        for (int j = 0; j < kVector; ++j) values[i][j] += others[j];
      }
      model::Store(to + i * kRows / 2 * out_stride, values[i]);
    }
    to += out_step, left -= step;
  }
}

// The adapter of the half of a product that begins at column `begin`; -1: none.
__device__ __forceinline__ int FindAdapter(const AdaptedProduct& product, int begin) {
  for (int index = 0; index < product.count; ++index) {
    if (product.adapters[index].begin == begin) return index;
  }
  return -1;
}

// What a block has of 16 rows in shared memory, while other rows are on their way.
constexpr int kActivateStages = 4;
constexpr int kInnerVectors = 2 * adapter_tile::kDepthVectors;  // of a row: x a^T of the gate's adapter and of the up's
static_assert(kRows * kInnerVectors == kThreads);
constexpr int kBlockVectors = kWarps * kColumns / kVector;  // of a row: the block's columns
struct ActivateStage {
  Vector columns[2][kRows][kBlockVectors];  // gates and ups
  Vector inner[kRows][kInnerVectors];
  int32_t sets[kRows];
};

// The places of a row's vectors. What eight lanes read at once must lie in different banks: eight rows' vectors of
// x a^T, and four vectors of each of two adjacent rows.
__device__ __forceinline__ unsigned PlaceInner(unsigned row, unsigned vector) { return vector ^ row % kInnerVectors; }
__device__ __forceinline__ unsigned PlaceColumn(unsigned row, unsigned vector) { return vector ^ row % 2 * 4; }

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

template <bool kDeep>
__global__ void __launch_bounds__(kThreads, kActivateResident)
    Activate(const __grid_constant__ AdaptedProduct product, int32_t width, const bf16* y, bf16* activated) {
  extern __shared__ ActivateStage stages[];
  const int stride = adapter_tile::GetStride(product), step = static_cast<int>(gridDim.y) * kRows;
  const unsigned thread = threadIdx.x, warp = thread / model::kWarp, lane = thread % model::kWarp, row = lane / 4;
  const int column = GetWarp() * kColumns, element = column + adapter_tile::GetElement();
  const int adapters[2] = {FindAdapter(product, 0), FindAdapter(product, width)};
  // A thread copies vectors of two rows, so that a warp reads whole lines of memory, and one vector of x a^T.
  constexpr unsigned kCopiedRows = kThreads / kBlockVectors;
  static_assert(kCopiedRows * kLaneRows == kRows);
  const unsigned copied_row = thread / kBlockVectors, copied_vector = thread % kBlockVectors;
  const int copied_element = static_cast<int>(blockIdx.x * kBlockVectors + copied_vector) * kVector;
  const unsigned inner_row = thread / kInnerVectors, inner_vector = thread % kInnerVectors;
  const int inner_adapter = inner_vector < kInnerVectors / 2 ? adapters[0] : adapters[1];
  const int inner_element = static_cast<int>(inner_vector) % (kInnerVectors / 2) * kVector;
  const bool has_inner = inner_adapter >= 0 && inner_element < product.rank;

  int first_row = static_cast<int>(blockIdx.y) * kRows;
  int row_of_set = first_row + static_cast<int>(inner_row);
  // The number of rows from the thread's upper row on, of those that are copied next, and of those that are computed.
  int left_to_copy = copied_element < width ? product.rows - first_row - static_cast<int>(copied_row) : 0;
  int left = element < width ? product.rows - first_row - static_cast<int>(row) : 0;
  const bf16* from = y + static_cast<int64_t>(first_row + copied_row) * stride + copied_element;
  const bf16* inner_from = y + static_cast<int64_t>(first_row + inner_row) * stride + product.columns +
                           inner_adapter * product.rank + inner_element;
  bf16* to = activated + static_cast<int64_t>(first_row + row) * width + element;
  const int64_t from_step = static_cast<int64_t>(step) * stride, to_step = static_cast<int64_t>(step) * width;
  const int place_step = product.count * product.rank;
  // Copies the next rows; `set`: of the row whose x a^T this thread copies.
  const auto copy = [&](ActivateStage& stage, int set) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const bool copies = left_to_copy > i * static_cast<int>(kCopiedRows);
      const bf16* const of_row = from + i * static_cast<int>(kCopiedRows) * stride;
      const unsigned to_row = copied_row + static_cast<unsigned>(i) * kCopiedRows;
      const unsigned to_vector = PlaceColumn(to_row, copied_vector);
      adapter_tile::CopyIf(copies, of_row, &stage.columns[0][to_row][to_vector]);
      adapter_tile::CopyIf(copies, of_row + width, &stage.columns[1][to_row][to_vector]);
    }
    adapter_tile::CopyIf(has_inner && set >= 0, inner_from + adapter_tile::GetPlace(set) * place_step,
                         &stage.inner[inner_row][PlaceInner(inner_row, inner_vector)]);
    if (inner_vector == 0) stage.sets[inner_row] = set;
    adapter_tile::EndCopies();
    from += from_step, inner_from += from_step, left_to_copy -= step;
  };
  const auto read_set = [&] {
    const int set = adapter_tile::ReadSet(product, row_of_set);
    row_of_set += step;
    return set;
  };

  int ahead[kActivateStages];
#pragma unroll
  for (int i = 0; i < kActivateStages; ++i) ahead[i] = read_set();
  Sets sets = adapter_tile::ReadSets(product, first_row);
  Outer outers[2];
  if (column < width) {
    adapter_tile::ReadFirstOuter(product, adapters[0], column, sets, outers[0]);
    adapter_tile::ReadFirstOuter(product, adapters[1], column, sets, outers[1]);
  }
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
#pragma unroll
  for (int i = 0; i + 1 < kActivateStages; ++i) copy(stages[i], ahead[i]);
  int set = ahead[kActivateStages - 1];
  ActivateStage *reading = stages, *filling = stages + kActivateStages - 1;
  for (; first_row < product.rows; first_row += step) {
    adapter_tile::WaitForCopies<kActivateStages - 2>();
    __syncthreads();  // the block sees all of this stage, and has read all of the one before
    copy(*filling, set);
    set = read_set();
    const ActivateStage& stage = *reading;
    filling = reading;
    reading = reading + 1 < stages + kActivateStages ? reading + 1 : stages;
    if (column < width) {
      unsigned mine = 0;
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) {
        sets.own[i] = stage.sets[row + i * kRows / 2];
        mine |= sets.own[i] >= 0 ? 1u << sets.own[i] : 0;
      }
      sets.present = __reduce_or_sync(model::kAllLanes, mine);
      float values[2][kLaneRows][kVector];
      const unsigned vector = PlaceColumn(row, warp * (kColumns / kVector) + lane % 4);  // also of row + kRows / 2
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Vector base[kLaneRows] = {model::Read(&stage.columns[half][row][vector]),
                                        model::Read(&stage.columns[half][row + kRows / 2][vector])};
        const Inner inner = adapter_tile::LoadInner([&](int of_row, int of_vector) {
          return static_cast<unsigned>(__cvta_generic_to_shared(
              &stage.inner[of_row][PlaceInner(of_row, half * adapter_tile::kDepthVectors + of_vector)]));
        });
        adapter_tile::Add<kDeep>(product, adapters[half], y, first_row, sets, column, base, inner, outers[half],
                                 values[half]);
      }
      if (left > 0) WriteActivated(to, values[0][0], values[1][0]);
      if (left > kRows / 2) WriteActivated(to + kRows / 2 * width, values[0][1], values[1][1]);
    }
    to += to_step, left -= step;
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

int32_t CountTiles(int32_t extent, int32_t tile) { return (extent + tile - 1) / tile; }

// Blocks have equally many tiles of rows, as far as that is possible: as few as fill the GPU, but at most `most_tiles`.
dim3 GetGrid(int32_t rows, int32_t column_tiles, int32_t resident, int32_t most_tiles) {
  const int32_t across = CountTiles(column_tiles, kWarps), tiles = CountTiles(rows, kRows);
  const int32_t of_block = CountTiles(tiles, std::max(kMultiprocessors * resident / across, 1));
  const int32_t down = CountTiles(tiles, std::min(of_block, most_tiles));
  return dim3(static_cast<unsigned>(across), static_cast<unsigned>(down));
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
  int32_t tiles = 0;
  for (int32_t i = 0; i < product.count; ++i) tiles += CountTiles(product.adapters[i].outputs, kColumns);
  return model::LaunchChained(IsDeep(product) ? Add<true> : Add<false>,
                              GetGrid(product.rows, tiles, kAddResident, kMostAddTiles), dim3(kThreads), 0, stream,
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
  return model::LaunchChained(IsDeep(product) ? Activate<true> : Activate<false>,
                              GetGrid(product.rows, CountTiles(width, kColumns), kActivateResident, kMostActivateTiles),
                              dim3(kThreads), kActivateStages * sizeof(ActivateStage), stream, product, width,
                              static_cast<const bf16*>(y), static_cast<bf16*>(activated));
}

}  // namespace syncopate::rollouter
