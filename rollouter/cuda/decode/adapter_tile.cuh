#pragma once

#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/adapter_kernels.h"

// What adapters add to a tile of 16 rows and 32 columns of a product y: the work of one warp, by its tensor cores. For
// .cu files only.
//
// A lane has two rows of the tile, lane / 4 and the one eight further, and of each of them eight adjacent columns
// from 8 (lane % 4) on, which are one 16-byte access. The instruction m16n8k16 gives a lane two adjacent columns; the
// n-th of four instructions therefore computes columns 8 i + 2 n and 8 i + 2 n + 1, for i = 0 .. 3.
namespace syncopate::rollouter::adapter_tile {

using model::bf16;
using model::kVector;
using model::kWarp;
using model::Vector;

constexpr int kRows = 16, kColumns = 32;
constexpr int kLaneRows = 2;
constexpr int kDepth = 32;  // elements of the rank that are multiplied at once
constexpr int kDepthVectors = kDepth / kVector;
constexpr int kSteps = kDepth / 16;  // instructions for these
constexpr int kWords = kVector / 2;  // of a vector: two elements each

__device__ __forceinline__ int GetLane() { return static_cast<int>(threadIdx.x) % kWarp; }
// The first of this lane's columns in the tile.
__device__ __forceinline__ int GetElement() { return GetLane() % 4 * kVector; }

inline int32_t CountTiles(int32_t extent, int32_t tile) { return (extent + tile - 1) / tile; }

// Begins to copy 16 bytes to shared memory, or zeros unless `reads`. A thread's copies up to EndCopies are a group.
__device__ __forceinline__ void CopyIf(bool reads, const bf16* from, void* to) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(reads ? 16 : 0)
      : "memory");
}
__device__ __forceinline__ void EndCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `kLeft` groups of this thread are under way, the newest ones.
template <int kLeft>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// What a row's set with its place (MakeRowSet) is made of.
__device__ __forceinline__ int GetSet(int row_set) { return row_set % kRowSets; }
__device__ __forceinline__ int GetPlace(int row_set) { return row_set / kRowSets; }

__device__ __forceinline__ int ReadSet(const AdaptedProduct& product, int row) {
  return row >= 0 && row < product.rows ? product.sets[row] : -1;
}

// The sets of the rows of a block's tiles, each with its place, in shared memory. They are read before the first
// tile: a load from global memory that is under way while tiles are multiplied makes each of them wait for it.
template <int kTiles>
struct RowSets {
  int32_t own[kTiles][kRows];  // below 0: no adapter, or no row
  unsigned present[kTiles];    // a bit for each set with its place that one of the tile's rows has
};

// A bit for each set with its place that one of a tile's rows has, of which `own` are the sets. All lanes of the warp
// must call it.
__device__ __forceinline__ unsigned FindPresent(const int32_t* own) {
  const int set = own[GetLane() % kRows];
  return __reduce_or_sync(model::kAllLanes, set < 0 ? 0 : 1u << set);
}

// Reads the sets of `tiles` tiles. The first begins at first_row, and each further one `step` rows after the one
// before it. All threads of the block must call it; they may use the sets after __syncthreads.
template <int kTiles>
__device__ __forceinline__ void ReadRowSets(const AdaptedProduct& product, int first_row, int step, int tiles,
                                            RowSets<kTiles>& sets) {
  const int thread = static_cast<int>(threadIdx.x), row = thread % kRows;
  // A warp reads two tiles, and each thread goes on with its own row of further ones.
  for (int tile = thread / kRows; tile / 2 * 2 < tiles; tile += static_cast<int>(blockDim.x) / kRows) {
    const int set = tile < tiles ? ReadSet(product, first_row + tile * step + row) : -1;
    unsigned present = set < 0 ? 0 : 1u << set;
#pragma unroll
    for (int offset = kRows / 2; offset > 0; offset /= 2) present |= __shfl_xor_sync(model::kAllLanes, present, offset);
    if (tile >= tiles) continue;
    sets.own[tile][row] = set;
    if (row == 0) sets.present[tile] = present;
  }
}

// The lane's part of x a^T of the tile's rows, kDepth elements of the rank: eight adjacent ones of each of its rows,
// from 8 (lane % 4) on. The instruction's order of these elements differs, but a sum has no order as long as those of
// x a^T and of b are paired alike.
struct Inner {
  unsigned rows[kLaneRows][kWords];
};

// One access of 16 bytes, or zeros unless `reads`.
__device__ __forceinline__ void ReadWords(bool reads, const void* from, unsigned* words) {
  const uint4 bits = reads ? *static_cast<const uint4*>(from) : uint4{};
  words[0] = bits.x, words[1] = bits.y, words[2] = bits.z, words[3] = bits.w;
}

// Reads the lane's part of a tile's x a^T from shared memory, where each row has its kDepth elements.
__device__ __forceinline__ Inner LoadInner(const Vector (*of_tile)[kDepthVectors]) {
  Inner inner;
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    ReadWords(true, &of_tile[GetLane() / 4 + i * kRows / 2][GetLane() % 4], inner.rows[i]);
  }
  return inner;
}

// Reads the same from the product itself, elements of the rank from `depth` on. `own`: the sets of the tile's rows.
__device__ __forceinline__ Inner ReadInner(const AdaptedProduct& product, int adapter, const bf16* y, int first_row,
                                           const int32_t* own, int depth) {
  Inner inner;
  const int element = depth + GetElement();
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    const int row = GetLane() / 4 + i * kRows / 2, set = own[row];
    const bf16* from = y + static_cast<int64_t>(first_row + row) * product.stride() + product.columns +
                       (GetPlace(set) * product.count + adapter) * product.rank + element;
    ReadWords(adapter >= 0 && set >= 0 && element < product.rank, from, inner.rows[i]);
  }
  return inner;
}

// The lane's part of b for the tile's columns and kDepth elements of the rank, eight adjacent ones of each of four
// columns. It stays in registers: most tiles of the same columns need the same part.
struct Outer {
  int set = -1;
  unsigned columns[kColumns / 8][kWords] = {};
};

__device__ __forceinline__ void ReadOuter(const AdaptedProduct& product, int adapter, int column, int set, int depth,
                                          Outer& outer) {
  outer.set = set;
  const bf16* b = static_cast<const bf16*>(product.adapters[adapter].b[GetSet(set)]);
  const int lane = GetLane(), element = depth + GetElement();
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const int output = column + lane / 8 * 8 + 2 * n + lane / 4 % 2;
    ReadWords(output < product.adapters[adapter].outputs && element < product.rank,
              b + static_cast<int64_t>(output) * product.rank + element, outer.columns[n]);
  }
}

// Reads what a row of `set` needs, which most likely is what the first tile needs. This may run before the earlier
// kernels end: no kernel of a pass writes sets or B.
__device__ __forceinline__ void ReadFirstOuter(const AdaptedProduct& product, int adapter, int column, int set,
                                               Outer& outer) {
  if (adapter >= 0 && set >= 0) ReadOuter(product, adapter, column, set, /*depth=*/0, outer);
}

// sums = inner outer^T + before.
__device__ __forceinline__ void Multiply(const Inner& inner, const Outer& outer, const float (*before)[kVector],
                                         float (*sums)[kVector]) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const float(*const from)[kVector] = s == 0 ? before : sums;
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%10, %11, %12, %13};"
          : "=f"(sums[0][2 * n]), "=f"(sums[0][2 * n + 1]), "=f"(sums[1][2 * n]), "=f"(sums[1][2 * n + 1])
          : "r"(inner.rows[0][2 * s]), "r"(inner.rows[1][2 * s]), "r"(inner.rows[0][2 * s + 1]),
            "r"(inner.rows[1][2 * s + 1]), "r"(outer.columns[n][2 * s]), "r"(outer.columns[n][2 * s + 1]),
            "f"(from[0][2 * n]), "f"(from[0][2 * n + 1]), "f"(from[1][2 * n]), "f"(from[1][2 * n + 1]));
    }
  }
}

// Begins to copy 16 bytes of the x a^T of a row of a tile by `set`, elements of the rank from `element` on; zeros
// where the row has none.
__device__ __forceinline__ void CopyInner(const AdaptedProduct& product, int adapter, const bf16* y, int row, int set,
                                          int element, Vector* to) {
  const int column = product.columns + (GetPlace(set) * product.count + adapter) * product.rank + element;
  CopyIf(adapter >= 0 && set >= 0 && element < product.rank, y + static_cast<int64_t>(row) * product.stride() + column,
         to);
}

// Puts zeros in the rows of other sets, which so do not change a bit of a row's result. `own`: the sets of the tile's
// rows.
__device__ __forceinline__ void KeepSet(const int32_t* own, int set, Inner& inner) {
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    const bool keeps = own[GetLane() / 4 + i * kRows / 2] == set;
#pragma unroll
    for (int w = 0; w < kWords; ++w) inner.rows[i][w] = keeps ? inner.rows[i][w] : 0;
  }
}

// values[row][i] = base[row][i] + what the adapter adds to its columns from `column` on. `of_tile`: x a^T of the tile
// in shared memory, elements of the rank from 0 on, with zeros for rows without an adapter; with kDeep, which ranks
// above kDepth need, it is not used. `own` and `present`: of the tile (RowSets). All lanes of the warp must call it,
// with the same `adapter` and `column`.
template <bool kDeep>
__device__ __forceinline__ void Add(const AdaptedProduct& product, int adapter, const bf16* y, int first_row,
                                    const int32_t* own, unsigned present, int column, const Vector* base,
                                    const Vector (*of_tile)[kDepthVectors], Outer& outer, float (*values)[kVector]) {
  if (adapter < 0) present = 0;
  float sums[kLaneRows][kVector];
  if constexpr (kDeep) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) sums[i][j] = 0;
    }
#pragma unroll 1
    for (unsigned left = present; left != 0; left &= left - 1) {
      const int set = __ffs(left) - 1;
#pragma unroll 1
      for (int depth = 0; depth < product.rank; depth += kDepth) {
        ReadOuter(product, adapter, column, set, depth, outer);
        Inner inner = ReadInner(product, adapter, y, first_row, own, depth);
        KeepSet(own, set, inner);
        Multiply(inner, outer, sums, sums);
      }
    }
  } else {
    // Most tiles have one set, whose part of b is there. If they have none, x a^T is zero.
    const float zeros[kLaneRows][kVector] = {};
    Inner inner = LoadInner(of_tile);
    const int first = __ffs(present) - 1;
    unsigned left = present & (present - 1);
    if (first >= 0 && outer.set != first) ReadOuter(product, adapter, column, first, /*depth=*/0, outer);
    if (left != 0) KeepSet(own, first, inner);
    Multiply(inner, outer, zeros, sums);
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
      const int set = __ffs(left) - 1;
      ReadOuter(product, adapter, column, set, /*depth=*/0, outer);
      Inner further = LoadInner(of_tile);
      KeepSet(own, set, further);
      Multiply(further, outer, sums, sums);
    }
  }
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    model::Widen(base[i], values[i]);
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[i][j] += product.scale * sums[i][j];
  }
}

}  // namespace syncopate::rollouter::adapter_tile
