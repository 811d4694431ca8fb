#include "rollouter/cuda/decode/adapter_norm.h"

#include <algorithm>

#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/adapter_tile.cuh"

// A block has all columns of 8 rows at a time, and goes on to further rows. A warp keeps its columns and so reads B once.
//
// The instruction m16n8k16 multiplies 16 columns of B with 8 rows of x a^T here. A lane has two adjacent rows of a tile
// of 64 columns, 2 (lane % 4) and the one behind, and of each of them eight adjacent columns, which are the 16-byte vector
// lane / 4. The instruction gives a lane the columns lane / 4 and lane / 4 + 8 of 16; the n-th of four instructions
// therefore computes columns 8 i + 2 n and 8 i + 2 n + 1, for i = 0 .. 7.
namespace syncopate::rollouter {
namespace {

using adapter_tile::GetLane;
using model::bf16;
using model::kVector;
using model::kWarp;
using model::Vector;

constexpr int kRows = 8, kColumns = 64;  // of a warp's tile
constexpr int kLaneRows = 2;
constexpr int kDepth = adapter_tile::kDepth, kSteps = adapter_tile::kSteps, kWords = adapter_tile::kWords;
constexpr int kInstructions = kVector / 2;  // for a tile and 16 elements of the rank
constexpr int kMostWarps = 16;              // of a block
constexpr int kMostTiles = 64;              // of rows, of a block
constexpr int kMultiprocessors = 132;
constexpr int kMostColumns = 2 * kMostWarps * kColumns;
constexpr int kLeastRows = kMultiprocessors * kRows;
constexpr int kMostStages = 5, kMostTogether = 2;

// What depends on the tiles of columns of a warp: the tiles of rows that are summed between two barriers, and those that a
// block has in shared memory, these and others that are on their way.
template <int kTiles>
constexpr int kTogether = kTiles == 1 ? 2 : 1;
template <int kTiles>
constexpr int kStages = kTiles == 1 ? kMostStages : 3;

// What a warp has of 8 rows in shared memory. Eight vectors of a row are a whole line of memory; they change places so that
// what eight lanes read at once lies in different banks: two adjacent vectors of every other row.
constexpr int kLine = kColumns / kVector;
template <int kTiles>
struct Stage {
  Vector inner[kRows][adapter_tile::kDepthVectors];  // x a^T
  Vector y[kTiles][kRows * kLine];                   // then the normed rows
  Vector residual[kTiles][kRows * kLine];            // then with what is added
};
__device__ __forceinline__ int Place(int row, int vector) { return row * kLine + (vector ^ (row & 6)); }

// In memory a lane accesses the vector lane % 8 of the rows lane / 8 and 4 further, so that eight lanes access a line.
constexpr int kAccessedRows = kWarp / kLine;
static_assert(kAccessedRows * kLaneRows == kRows);

// The lane's part of B for a tile of columns, as the instructions take it: of each of its eight columns eight adjacent
// elements of the rank, from 8 (lane % 4) on. It stays in registers: all rows have the same set, or none.
struct Outer {
  unsigned parts[kInstructions][kSteps][kWords] = {};
};

__device__ __forceinline__ Outer ReadOuter(const AdaptedProduct& product, int column, int set) {
  Outer outer;
  const int element = GetLane() % 4 * kVector;
  const bool reads = column < product.columns && element < product.rank;
  const bf16* b = static_cast<const bf16*>(product.adapters[0].b[adapter_tile::GetSet(set)]) +
                  static_cast<int64_t>(column) * product.rank + element;
#pragma unroll
  for (int n = 0; n < kInstructions; ++n) {
    unsigned words[2][kWords];
#pragma unroll
    for (int i = 0; i < 2; ++i) adapter_tile::ReadWords(reads, b + (2 * n + i) * product.rank, words[i]);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      outer.parts[n][s][0] = words[0][2 * s], outer.parts[n][s][1] = words[1][2 * s];
      outer.parts[n][s][2] = words[0][2 * s + 1], outer.parts[n][s][3] = words[1][2 * s + 1];
    }
  }
  return outer;
}

// sums = B x a^T, where sums[row][i] is of the lane's row and column.
__device__ __forceinline__ void Multiply(const Outer& outer, const Vector& inner, float (*sums)[kVector]) {
  const unsigned* const words = reinterpret_cast<const unsigned*>(&inner);
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) sums[i][j] = 0;
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int n = 0; n < kInstructions; ++n) {
      const unsigned* const part = outer.parts[n][s];
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(sums[0][2 * n]), "+f"(sums[1][2 * n]), "+f"(sums[0][2 * n + 1]), "+f"(sums[1][2 * n + 1])
          : "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3]), "r"(words[2 * s]), "r"(words[2 * s + 1]));
    }
  }
}

// Returns y + scale * added + residual, and adds the squares of what is rounded to `squares`.
__device__ __forceinline__ Vector Sum(float scale, const Vector& y, const float* added, const Vector& residual,
                                      float& squares) {
  float sums[kVector], others[kVector];
  model::Widen(y, sums);
  model::Widen(residual, others);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    sums[i] += scale * added[i];
    sums[i] += others[i];
  }
  const Vector sum = model::Narrow(sums);
  model::Widen(sum, sums);
#pragma unroll
  for (int i = 0; i < kVector; ++i) squares += sums[i] * sums[i];
  return sum;
}

// What the block's rows say of their adapters (MakeRowSet), the set of those that have one, and sums of squares: of each
// warp's columns of the lanes' rows. Two of the latter, because a warp may be ahead of others.
struct alignas(128) Shared {
  int32_t sets[kMostTiles + kMostStages][kRows];
  int32_t set;
  float2 squares[2][kMostTogether][kMostWarps][kRows / kLaneRows];
};

// The sum over the lanes that have the same rows, in each of them.
__device__ __forceinline__ float2 SumOverLanes(float2 value) {
#pragma unroll
  for (int offset = kRows / kLaneRows; offset < kWarp; offset *= 2) {
    value.x += __shfl_xor_sync(model::kAllLanes, value.x, offset);
    value.y += __shfl_xor_sync(model::kAllLanes, value.y, offset);
  }
  return value;
}

// Does what model::ScaleAsRmsNorm and storing do: the product of two bf16 numbers is rounded once.
__device__ __forceinline__ Vector ScaleAsRmsNorm(const Vector& vector, float scale, const Vector& weight) {
  float x[kVector];
  model::Widen(vector, x);
  Vector normed;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    normed.pairs[i] = __hmul2(__floats2bfloat162_rn(x[2 * i] * scale, x[2 * i + 1] * scale), weight.pairs[i]);
  }
  return normed;
}

template <int kTiles, int kBoundWarps>
__global__ void __launch_bounds__(kBoundWarps* kWarp)
    AddAndNorm(const __grid_constant__ AdaptedProduct product, float epsilon, const bf16* y, const bf16* weight,
               bf16* residual, bf16* normed) {
  constexpr int kOwn = kStages<kTiles>, kAtOnce = kTogether<kTiles>;
  extern __shared__ char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x), lane = GetLane();
  const int warp = thread / kWarp, warps = threads / kWarp, column_step = warps * kColumns;
  const int hidden = product.columns, stride = adapter_tile::GetStride(product);
  // The last rows come first: they are what the product before has left in the cache.
  const int all_tiles = (product.rows + kRows - 1) / kRows, grid = static_cast<int>(gridDim.x);
  const int last_tile = all_tiles - 1 - static_cast<int>(blockIdx.x), tiles = last_tile / grid + 1;
  if (thread == 0) shared.set = -1;
  for (int i = thread; i < 2 * kMostTogether * kMostWarps * kRows / kLaneRows; i += threads) {
    (&shared.squares[0][0][0][0])[i] = make_float2(0, 0);  // also for warps that the block does not have
  }
  __syncthreads();
  for (int i = thread; i < (tiles + kOwn) * kRows; i += threads) {
    const int set = adapter_tile::ReadSet(product, (last_tile - i / kRows * grid) * kRows + i % kRows);
    shared.sets[i / kRows][i % kRows] = set;
    if (set >= 0) shared.set = set;  // all of them are the same
  }
  const int vector = lane / 4, column = warp * kColumns + vector * kVector;
  Vector weights[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    weights[t] = column + t * column_step < hidden ? model::Read(weight + column + t * column_step) : Vector{};
  }
  __syncthreads();
  Outer outers[kTiles];
  if (shared.set >= 0) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) outers[t] = ReadOuter(product, column + t * column_step, shared.set);
  }
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();

  Stage<kTiles>*const first = reinterpret_cast<Stage<kTiles>*>(memory + sizeof(Shared)) + warp, *const end = first + kOwn * warps;
  const auto next = [&](Stage<kTiles>* stage) { return stage + warps == end ? first : stage + warps; };
  // Where the lane accesses memory.
  const int accessed = warp * kColumns + lane % kLine * kVector;
  bool has_columns[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) has_columns[t] = accessed + t * column_step < hidden;
  int row_to_copy = last_tile * kRows + lane / kLine, row = row_to_copy;
  const int row_step = grid * kRows;
  const int64_t step = static_cast<int64_t>(row_step) * hidden, y_step = static_cast<int64_t>(row_step) * stride;
  int64_t at = static_cast<int64_t>(row) * hidden + accessed;
  const bf16* residual_from = residual + at;
  const bf16* y_from = y + static_cast<int64_t>(row) * stride + accessed;
  const bf16* inner_from =
      y + static_cast<int64_t>(last_tile * kRows + lane / 4) * stride + hidden + lane % 4 * kVector;
  const bool has_inner = lane % 4 * kVector < product.rank;
  int places[kLaneRows];
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) places[i] = Place(lane / kLine + i * kAccessedRows, lane % kLine);
  const int32_t* set_to_copy = &shared.sets[0][lane / 4];
  Stage<kTiles>* to = first;
  const auto copy = [&] {
    adapter_tile::CopyIf(has_inner && *set_to_copy >= 0, inner_from, &to->inner[lane / 4][lane % 4]);
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      // Behind the block's tiles the row is below 0.
      const bool is_row = static_cast<unsigned>(row_to_copy + i * kAccessedRows) < static_cast<unsigned>(product.rows);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        adapter_tile::CopyIf(is_row && has_columns[t], y_from + i * kAccessedRows * stride + t * column_step,
                             &to->y[t][places[i]]);
        adapter_tile::CopyIf(is_row && has_columns[t], residual_from + i * kAccessedRows * hidden + t * column_step,
                             &to->residual[t][places[i]]);
      }
    }
    adapter_tile::EndCopies();
    set_to_copy += kRows, inner_from -= y_step, y_from -= y_step, residual_from -= step, row_to_copy -= row_step;
    to = next(to);
  };
#pragma unroll
  for (int i = 0; i < kOwn - kAtOnce; ++i) copy();
  const float of_one = 1.0f / static_cast<float>(hidden);
  Stage<kTiles>* from = first;
  for (int tile = 0; tile < tiles; tile += kAtOnce) {
    adapter_tile::WaitForCopies<kOwn - 2 * kAtOnce>();
    __syncwarp();  // the warp sees these stages, and has read all of those before
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) copy();
    Vector sums[kAtOnce][kTiles][kLaneRows];
    float2(*const squares)[kMostWarps][kRows / kLaneRows] = shared.squares[tile / kAtOnce % 2];
    Stage<kTiles>* stage = from;
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r, stage = next(stage)) {
      const Vector inner = model::Read(&stage->inner[lane / 4][lane % 4]);
      float of_row[kLaneRows] = {};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        float added[kLaneRows][kVector];
        Multiply(outers[t], inner, added);
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
          const int place = Place(lane % 4 * kLaneRows + i, vector);
          sums[r][t][i] = Sum(product.scale, model::Read(&stage->y[t][place]), added[i],
                              model::Read(&stage->residual[t][place]), of_row[i]);
          model::Write(&stage->residual[t][place], sums[r][t][i]);
        }
      }
      const float2 sum = SumOverLanes(make_float2(of_row[0], of_row[1]));
      if (lane < kRows / kLaneRows) squares[r][warp][lane] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r, from = next(from)) {
      float2 sum = squares[r][lane / 4][lane % 4];
      const float2 other = squares[r][lane / 4 + kMostWarps / 2][lane % 4];
      sum = SumOverLanes(make_float2(sum.x + other.x, sum.y + other.y));
      const float scales[kLaneRows] = {rsqrtf(sum.x * of_one + epsilon), rsqrtf(sum.y * of_one + epsilon)};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < kLaneRows; ++i) {
          model::Write(&from->y[t][Place(lane % 4 * kLaneRows + i, vector)],
                       ScaleAsRmsNorm(sums[r][t][i], scales[i], weights[t]));
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) {
        const bool is_row = static_cast<unsigned>(row + i * kAccessedRows) < static_cast<unsigned>(product.rows);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          if (!is_row || !has_columns[t]) continue;
          const int64_t place = at + i * kAccessedRows * hidden + t * column_step;
          model::Write(residual + place, model::Read(&from->residual[t][places[i]]));
          model::Write(normed + place, model::Read(&from->y[t][places[i]]));
        }
      }
      at -= step, row -= row_step;
    }
  }
}

int32_t CountTiles(int32_t extent, int32_t tile) { return (extent + tile - 1) / tile; }

// kBoundWarps: the most warps of a block, which bound its registers.
template <int kTiles, int kBoundWarps>
cudaError_t Launch(const AdaptedProduct& product, float epsilon, const void* y, const void* weight, void* residual,
                   void* normed, cudaStream_t stream) {
  const auto kernel = AddAndNorm<kTiles, kBoundWarps>;
  const int32_t warps = CountTiles(product.columns, kTiles * kColumns), tiles = CountTiles(product.rows, kRows);
  const int32_t blocks = std::max(std::min(tiles, kMultiprocessors), CountTiles(tiles, kMostTiles));
  const int bytes = kStages<kTiles> * warps * static_cast<int>(sizeof(Stage<kTiles>)) + static_cast<int>(sizeof(Shared));
  const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (allowed != cudaSuccess) return allowed;
  return model::LaunchChained(kernel, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(warps * kWarp)),
                              static_cast<size_t>(bytes), stream, product, epsilon, static_cast<const bf16*>(y),
                              static_cast<const bf16*>(weight), static_cast<bf16*>(residual),
                              static_cast<bf16*>(normed));
}

}  // namespace

bool FitsAddAdaptersAndNorm(const AdaptedProduct& product) {
  return product.Fits() && product.count == 1 && product.places == 1 && product.adapters[0].begin == 0 &&
         product.adapters[0].outputs == product.columns && product.rank <= kDepth && product.columns <= kMostColumns &&
         product.rows >= kLeastRows;
}

cudaError_t AddAdaptersAndNorm(const AdaptedProduct& product, const model::NormShape& shape, const void* y,
                               const void* weight, void* residual, void* normed, cudaStream_t stream) {
  if (!FitsAddAdaptersAndNorm(product) || shape.rows != product.rows || shape.hidden != product.columns) {
    return cudaErrorInvalidValue;
  }
  constexpr int kFewWarps = 12;
  const auto launch = product.columns <= kMostWarps * kColumns      ? Launch<1, kMostWarps>
                      : product.columns <= 2 * kFewWarps * kColumns ? Launch<2, kFewWarps>
                                                                    : Launch<2, kMostWarps>;
  return launch(product, shape.epsilon, y, weight, residual, normed, stream);
}

}  // namespace syncopate::rollouter
