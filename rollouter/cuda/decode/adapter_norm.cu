#include "rollouter/cuda/decode/adapter_norm.h"

#include <algorithm>

#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/adapter_tile.cuh"

// A block has all columns of 8 rows at a time, and goes on to further rows. A warp keeps its columns and so reads B
// once. A round is what lies between two barriers of the block: one or two tiles of rows.
//
// The instruction m16n8k16 multiplies 16 columns of B with 8 rows of x a^T here. A lane has two adjacent rows of a tile
// of 64 columns, 2 (lane % 4) and the one behind, and of each of them eight adjacent columns, which are the 16-byte
// vector lane / 4. The instruction gives a lane the columns lane / 4 and lane / 4 + 8 of 16; the n-th of four
// instructions therefore computes columns 8 i + 2 n and 8 i + 2 n + 1, for i = 0 .. 7.
namespace syncopate::rollouter {
namespace {

using adapter_tile::CountTiles;
using adapter_tile::GetLane;
using model::bf16;
using model::kMultiprocessors;
using model::kVector;
using model::kWarp;
using model::Vector;

constexpr int kRows = 8, kColumns = 64;  // of a warp's tile
constexpr int kLaneRows = 2;
constexpr int kDepth = adapter_tile::kDepth, kSteps = adapter_tile::kSteps, kWords = adapter_tile::kWords;
constexpr int kInstructions = kVector / 2;  // for a tile and 16 elements of the rank
constexpr int kMostWarps = 16;              // of a block
constexpr int kMostTiles = 64;              // of rows, of a block
constexpr int kMostColumns = 2 * kMostWarps * kColumns;
constexpr int kLeastRows = kMultiprocessors * kRows;
constexpr int kMostTogether = 2, kMostAhead = 3;
constexpr int kFurtherTiles = (kMostAhead + 1) * kMostTogether;  // behind a block's last one, that it begins to copy

// What depends on the tiles of columns of a warp: the tiles of rows of a round, and those that a block has in shared
// memory, these and others that are on their way.
template <int kTiles>
constexpr int kTogether = kTiles == 1 ? 2 : 1;
template <int kTiles>
constexpr int kStages = kTiles == 1 ? 6 : 3;

// What a warp has of 8 rows in shared memory. Eight vectors of a row are a whole line of memory; they change places so
// that what eight lanes read at once lies in different banks: two adjacent vectors of every other row.
constexpr int kLine = kColumns / kVector;
template <int kTiles>
struct Stage {
  Vector y[kTiles][kRows * kLine];         // then the normed rows
  Vector residual[kTiles][kRows * kLine];  // then with what is added
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

template <int kTiles>
__device__ __forceinline__ void ReadOuters(const AdaptedProduct& product, const int (&columns)[kTiles], int set,
                                           Outer (&outers)[kTiles]) {
  if (set < 0) return;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) outers[t] = ReadOuter(product, columns[t], set);
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

// What a block has in shared memory beside its stages, which lie behind it: a copy to an address that is not in the
// same place of a line as the one it comes from is made by twice as many accesses to the second-level cache.
struct alignas(128) Shared {
  int32_t sets[kMostTiles + kFurtherTiles][kRows];  // what the rows say of their adapters (MakeRowSet)
  int32_t set;                                      // that of all rows that have one
  Vector inner[kMostAhead + 1][kMostTogether][kRows][adapter_tile::kDepthVectors];  // x a^T, by round
  // Sums over each warp's columns. They are twice there, because a warp may be ahead of others.
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

// The tiles of rows of a block. The last rows come first: they are what the product before has left in the cache.
struct BlockTiles {
  int last, count;  // the first one that the block takes, and how many it takes, each gridDim.x before the one before

  __device__ __forceinline__ explicit BlockTiles(int rows)
      : last((rows + kRows - 1) / kRows - 1 - static_cast<int>(blockIdx.x)),
        count(last / static_cast<int>(gridDim.x) + 1) {}
  // Below 0 behind the block's tiles.
  __device__ __forceinline__ int GetFirstRow(int tile) const {
    return (last - tile * static_cast<int>(gridDim.x)) * kRows;
  }
};

// Reads what the rows say of their adapters. All threads of the block must call it; they may use it after
// __syncthreads.
__device__ __forceinline__ void ReadSets(const AdaptedProduct& product, const BlockTiles& tiles, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (thread == 0) shared.set = -1;
  for (int i = thread; i < 2 * kMostTogether * kMostWarps * kRows / kLaneRows; i += threads) {
    (&shared.squares[0][0][0][0])[i] = make_float2(0, 0);  // also for warps that the block does not have
  }
  __syncthreads();
  for (int i = thread; i < (tiles.count + kFurtherTiles) * kRows; i += threads) {
    const int set = adapter_tile::ReadSet(product, tiles.GetFirstRow(i / kRows) + i % kRows);
    shared.sets[i / kRows][i % kRows] = set;
    if (set >= 0) shared.set = set;  // all of them are the same
  }
}

// Begins to copy x a^T of a round's tiles, which all warps share.
template <int kTiles>
__device__ __forceinline__ void CopyInner(const AdaptedProduct& product, const BlockTiles& tiles, const bf16* y,
                                          int round, Shared& shared) {
  const int row = GetLane() / 4, element = GetLane() % 4 * kVector, warps = static_cast<int>(blockDim.x) / kWarp;
  for (int r = static_cast<int>(threadIdx.x) / kWarp; r < kTogether<kTiles>; r += warps) {
    const int tile = round * kTogether<kTiles> + r;
    adapter_tile::CopyInner(product, 0, y, tiles.GetFirstRow(tile) + row, shared.sets[tile][row], element,
                            &shared.inner[round % (kMostAhead + 1)][r][row][GetLane() % 4]);
  }
}

// Where a lane accesses memory, one tile of rows after the other.
template <int kTiles>
class Access {
 public:
  __device__ __forceinline__ Access(const AdaptedProduct& product, const BlockTiles& tiles, const bf16* y,
                                    bf16* residual, bf16* normed)
      : rows_(product.rows), hidden_(product.columns), stride_(product.stride()) {
    const int column = static_cast<int>(threadIdx.x) / kWarp * kColumns + GetLane() % kLine * kVector;
    column_step_ = static_cast<int>(blockDim.x) / kWarp * kColumns;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) has_[t] = column + t * column_step_ < hidden_;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) places_[i] = Place(GetLane() / kLine + i * kAccessedRows, GetLane() % kLine);
    row_to_copy_ = row_ = tiles.GetFirstRow(0) + GetLane() / kLine;
    row_step_ = static_cast<int>(gridDim.x) * kRows;
    y_ = y + static_cast<int64_t>(row_) * stride_ + column;
    const int64_t at = static_cast<int64_t>(row_) * hidden_ + column;
    from_ = residual + at, residual_ = residual + at, normed_ = normed + at;
  }

  // Begins to copy the lane's vectors of the next tile. These copies are a group.
  __device__ __forceinline__ void Copy(Stage<kTiles>& stage) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const bool is_row = IsRow(row_to_copy_ + i * kAccessedRows);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        adapter_tile::CopyIf(is_row && has_[t], y_ + i * kAccessedRows * stride_ + t * column_step_,
                             &stage.y[t][places_[i]]);
        adapter_tile::CopyIf(is_row && has_[t], from_ + i * kAccessedRows * hidden_ + t * column_step_,
                             &stage.residual[t][places_[i]]);
      }
    }
    adapter_tile::EndCopies();
    y_ -= static_cast<int64_t>(row_step_) * stride_, from_ -= static_cast<int64_t>(row_step_) * hidden_;
    row_to_copy_ -= row_step_;
  }

  // Writes the lane's vectors of the next tile.
  __device__ __forceinline__ void Write(const Stage<kTiles>& stage) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const bool is_row = IsRow(row_ + i * kAccessedRows);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (!is_row || !has_[t]) continue;
        const int place = i * kAccessedRows * hidden_ + t * column_step_;
        model::Write(residual_ + place, model::Read(&stage.residual[t][places_[i]]));
        model::Write(normed_ + place, model::Read(&stage.y[t][places_[i]]));
      }
    }
    residual_ -= static_cast<int64_t>(row_step_) * hidden_, normed_ -= static_cast<int64_t>(row_step_) * hidden_;
    row_ -= row_step_;
  }

 private:
  __device__ __forceinline__ bool IsRow(int row) const {
    return static_cast<unsigned>(row) < static_cast<unsigned>(rows_);  // also below 0
  }

  int rows_, hidden_, stride_, column_step_, row_step_;
  int row_to_copy_, row_;  // the lane's first one in the next tile
  const bf16 *y_, *from_;
  bf16 *residual_, *normed_;
  bool has_[kTiles];  // whether there are such columns
  int places_[kLaneRows];
};

// What a lane has of a tile of rows while their squares are summed.
template <int kTiles>
struct Sums {
  Vector vectors[kTiles][kLaneRows];
};

// Adds to the residual, also in `stage`; returns the squares of the lane's rows, summed over the warp's columns.
template <int kTiles>
__device__ __forceinline__ float2 AddTile(float scale, const Outer* outers, const Vector& inner, Stage<kTiles>& stage,
                                          Sums<kTiles>& sums) {
  float squares[kLaneRows] = {};
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    float added[kLaneRows][kVector];
    Multiply(outers[t], inner, added);
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int place = Place(GetLane() % 4 * kLaneRows + i, GetLane() / 4);
      sums.vectors[t][i] =
          Sum(scale, model::Read(&stage.y[t][place]), added[i], model::Read(&stage.residual[t][place]), squares[i]);
      model::Write(&stage.residual[t][place], sums.vectors[t][i]);
    }
  }
  return SumOverLanes(make_float2(squares[0], squares[1]));
}

// Writes the normed rows to `stage`. `squares`: those of all warps' columns.
template <int kTiles>
__device__ __forceinline__ void NormTile(const Sums<kTiles>& sums, const float2 (*squares)[kRows / kLaneRows],
                                         float of_one, float epsilon, const Vector* weights, Stage<kTiles>& stage) {
  const int vector = GetLane() / 4, pair = GetLane() % 4;
  float2 sum = squares[vector][pair];
  const float2 other = squares[vector + kMostWarps / 2][pair];
  sum = SumOverLanes(make_float2(sum.x + other.x, sum.y + other.y));
  const float scales[kLaneRows] = {rsqrtf(sum.x * of_one + epsilon), rsqrtf(sum.y * of_one + epsilon)};
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      model::Write(&stage.y[t][Place(pair * kLaneRows + i, vector)],
                   ScaleAsRmsNorm(sums.vectors[t][i], scales[i], weights[t]));
    }
  }
}

// kBoundWarps: the most warps of a block, which bound its registers.
template <int kTiles, int kBoundWarps>
__global__ void __launch_bounds__(kBoundWarps* kWarp)
    AddAndNorm(const __grid_constant__ AdaptedProduct product, float epsilon, const bf16* y, const bf16* weight,
               bf16* residual, bf16* normed) {
  constexpr int kOwn = kStages<kTiles>, kAtOnce = kTogether<kTiles>;
  extern __shared__ char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int lane = GetLane(), warp = static_cast<int>(threadIdx.x) / kWarp,
            warps = static_cast<int>(blockDim.x) / kWarp;
  const BlockTiles tiles(product.rows);
  // Most likely one of the first rows has the set.
  const int first_set =
      __reduce_max_sync(model::kAllLanes, adapter_tile::ReadSet(product, tiles.GetFirstRow(0) + lane % kRows));
  ReadSets(product, tiles, shared);
  Vector weights[kTiles];
  int columns[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    columns[t] = (t * warps + warp) * kColumns + lane / 4 * kVector;
    weights[t] = columns[t] < product.columns ? model::Read(weight + columns[t]) : Vector{};
  }
  Outer outers[kTiles];
  ReadOuters(product, columns, first_set, outers);
  __syncthreads();
  if (first_set < 0) ReadOuters(product, columns, shared.set, outers);
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();

  Stage<kTiles>* const first = reinterpret_cast<Stage<kTiles>*>(memory + sizeof(Shared)) + warp;
  const auto next = [&](Stage<kTiles>* stage) { return stage + warps == first + kOwn * warps ? first : stage + warps; };
  Access<kTiles> access(product, tiles, y, residual, normed);
  Stage<kTiles>*to = first, *from = first;
  for (int round = 0; round < kMostAhead; ++round) CopyInner<kTiles>(product, tiles, y, round, shared);
#pragma unroll
  for (int i = 0; i < kOwn - kAtOnce; ++i, to = next(to)) access.Copy(*to);
  const float of_one = 1.0f / static_cast<float>(product.columns);
  for (int round = 0; round * kAtOnce < tiles.count; ++round) {
    adapter_tile::WaitForCopies<kOwn - 2 * kAtOnce>();
    __syncwarp();  // the warp sees these stages, and has read all of those before
    // The block sees the first x a^T. A later one has come before the barrier of the round before its own.
    if (round == 0) __syncthreads();
    CopyInner<kTiles>(product, tiles, y, round + kMostAhead, shared);
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r, to = next(to)) access.Copy(*to);
    Sums<kTiles> sums[kAtOnce];
    Stage<kTiles>* stage = from;
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r, stage = next(stage)) {
      const Vector inner = model::Read(&shared.inner[round % (kMostAhead + 1)][r][lane / 4][lane % 4]);
      const float2 squares = AddTile(product.scale, outers, inner, *stage, sums[r]);
      if (lane < kRows / kLaneRows) shared.squares[round % 2][r][warp][lane] = squares;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r, from = next(from)) {
      NormTile(sums[r], shared.squares[round % 2][r], of_one, epsilon, weights, *from);
      __syncwarp();
      access.Write(*from);
    }
  }
}

template <int kTiles, int kBoundWarps>
cudaError_t Launch(const AdaptedProduct& product, float epsilon, const void* y, const void* weight, void* residual,
                   void* normed, cudaStream_t stream) {
  const auto kernel = AddAndNorm<kTiles, kBoundWarps>;
  const int32_t warps = CountTiles(product.columns, kTiles * kColumns), tiles = CountTiles(product.rows, kRows);
  const int32_t blocks = std::max(std::min(tiles, kMultiprocessors), CountTiles(tiles, kMostTiles));
  const int bytes =
      kStages<kTiles> * warps * static_cast<int>(sizeof(Stage<kTiles>)) + static_cast<int>(sizeof(Shared));
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
