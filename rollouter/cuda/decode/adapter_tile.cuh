#pragma once

#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/adapter_kernels.h"

// What adapters add to a tile of 16 rows and 32 columns of a product y: the work of one warp, by its tensor cores. For
// .cu files only.
//
// A lane has two rows of the tile, lane / 4 and the one eight further, and of each of them eight adjacent columns from
// 8 (lane % 4) on, which are one 16-byte access. The instruction m16n8k16 gives a lane two adjacent columns; the n-th of
// four instructions therefore computes columns 8 i + 2 n and 8 i + 2 n + 1, for i = 0 .. 3.
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

__device__ __forceinline__ int GetLane() { return static_cast<int>(threadIdx.x) % kWarp; }
// The first of this lane's columns in the tile.
__device__ __forceinline__ int GetElement() { return GetLane() % 4 * kVector; }

__device__ __forceinline__ int GetStride(const AdaptedProduct& product) {
  return product.columns + product.places * product.count * product.rank;
}

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

// The sets of a tile's rows, each with its place (MakeRowSet), as this lane knows them.
struct Sets {
  int own[kLaneRows];  // of this lane's rows; below 0: no adapter, or a row behind the last one
  unsigned present;    // a bit for each set with its place that one of the tile's rows has
};
__device__ __forceinline__ int GetSet(int row_set) { return row_set % kRowSets; }
__device__ __forceinline__ int GetPlace(int row_set) { return row_set / kRowSets; }

__device__ __forceinline__ int ReadSet(const AdaptedProduct& product, int row) {
  return row >= 0 && row < product.rows ? product.sets[row] : -1;
}

// All lanes of the warp must call it.
__device__ __forceinline__ Sets ReadSets(const AdaptedProduct& product, int first_row) {
  Sets sets;
  unsigned mine = 0;
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    sets.own[i] = ReadSet(product, first_row + GetLane() / 4 + i * kRows / 2);
    if (sets.own[i] >= 0) mine |= 1u << sets.own[i];
  }
  sets.present = __reduce_or_sync(model::kAllLanes, mine);
  return sets;
}

// The lane's part of x a^T of the tile's rows, kDepth elements of the rank, as the instructions take it: element
// parts[s][i] is of row i % 2 of the lane.
struct Inner {
  unsigned parts[kSteps][4];
};

// Reads a tile's x a^T from shared memory, where each row has its kDepth elements, each row by its own set.
// `get_place(row, vector)`: the address of a row's vector.
template <typename GetPlace>
__device__ __forceinline__ Inner LoadInner(const GetPlace& get_place) {
  Inner inner;
  const int lane = GetLane(), row = lane % kRows;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(inner.parts[s][0]), "=r"(inner.parts[s][1]), "=r"(inner.parts[s][2]), "=r"(inner.parts[s][3])
                 : "r"(get_place(row, 2 * s + lane / kRows))
                 : "memory");
  }
  return inner;
}

__device__ __forceinline__ unsigned ReadPair(bool reads, const bf16* from) {
  return reads ? *reinterpret_cast<const unsigned*>(from) : 0;
}

// Reads the same from the product itself, elements of the rank from `depth` on. `rows`: of this lane.
__device__ __forceinline__ Inner ReadInner(const AdaptedProduct& product, int adapter, const bf16* y, int first_row,
                                           const Sets& sets, int depth) {
  Inner inner;
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    const int row = first_row + GetLane() / 4 + i * kRows / 2;
    const bf16* from = y + static_cast<int64_t>(row) * GetStride(product) + product.columns +
                       (GetPlace(sets.own[i]) * product.count + adapter) * product.rank + GetLane() % 4 * 2;
#pragma unroll
    for (int v = 0; v < kDepthVectors; ++v) {
      const int element = depth + v * kVector;
      inner.parts[v / 2][v % 2 * 2 + i] =
          ReadPair(adapter >= 0 && sets.own[i] >= 0 && element < product.rank, from + element);
    }
  }
  return inner;
}

// The lane's part of b for the tile's columns and kDepth elements of the rank. It stays in registers: most tiles of the
// same columns need the same part.
struct Outer {
  int set = -1;
  unsigned columns[kColumns / 8][kDepthVectors];
};

__device__ __forceinline__ void ReadOuter(const AdaptedProduct& product, int adapter, int column, int set, int depth,
                                          Outer& outer) {
  outer.set = set;
  const bf16* b = static_cast<const bf16*>(product.adapters[adapter].b[GetSet(set)]);
  const int lane = GetLane();
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const int output = column + lane / 8 * 8 + 2 * n + lane / 4 % 2;
    const bf16* from = b + static_cast<int64_t>(output) * product.rank + lane % 4 * 2;
#pragma unroll
    for (int v = 0; v < kDepthVectors; ++v) {
      const int element = depth + v * kVector;
      outer.columns[n][v] =
          ReadPair(output < product.adapters[adapter].outputs && element < product.rank, from + element);
    }
  }
}

// Reads what the first set of the tile needs. ReadSets and this may run before the earlier kernels end: no kernel of a
// pass writes sets or B.
__device__ __forceinline__ void ReadFirstOuter(const AdaptedProduct& product, int adapter, int column, const Sets& sets,
                                               Outer& outer) {
  if (adapter >= 0 && sets.present != 0) ReadOuter(product, adapter, column, __ffs(sets.present) - 1, 0, outer);
}

// sums += inner outer^T.
__device__ __forceinline__ void Multiply(const Inner& inner, const Outer& outer, float (*sums)[kVector]) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(sums[0][2 * n]), "+f"(sums[0][2 * n + 1]), "+f"(sums[1][2 * n]), "+f"(sums[1][2 * n + 1])
          : "r"(inner.parts[s][0]), "r"(inner.parts[s][1]), "r"(inner.parts[s][2]), "r"(inner.parts[s][3]),
            "r"(outer.columns[n][2 * s]), "r"(outer.columns[n][2 * s + 1]));
    }
  }
}

// What a warp has in shared memory of a tile, while other tiles are on their way: two vectors of each of a lane's rows,
// which that lane has copied itself and reads, and x a^T, which all lanes read.
struct Stage {
  Vector columns[2][kLaneRows][kWarp];
  Vector inner[kRows][kDepthVectors];
  int32_t sets[kLaneRows][kWarp];

  // The place of a row's vector of x a^T. Eight rows' vectors, which are read at once, must lie in different banks.
  __device__ __forceinline__ Vector* PlaceInner(int row, int vector) {
    return &inner[row][vector ^ row / 2 % kDepthVectors];
  }
};

// Begins to copy x a^T of a tile's rows, each by its own set; zeros where a row or the warp (`adapter` below 0) has
// none.
__device__ __forceinline__ void CopyInner(const AdaptedProduct& product, int adapter, const bf16* y, int first_row,
                                          const int* own_sets, Stage& stage) {
  const int lane = GetLane(), element = GetElement();
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    const int row = lane / 4 + i * kRows / 2, set = own_sets[i];
    const int column = product.columns + (GetPlace(set) * product.count + adapter) * product.rank + element;
    CopyIf(adapter >= 0 && set >= 0 && element < product.rank,
           y + static_cast<int64_t>(first_row + row) * GetStride(product) + column, stage.PlaceInner(row, lane % 4));
    stage.sets[i][lane] = set;
  }
}

// Reads what CopyInner has copied, and the sets. All lanes of the warp must call it, after a __syncwarp.
__device__ __forceinline__ Inner LoadInner(Stage& stage, Sets& sets) {
  unsigned mine = 0;
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    sets.own[i] = stage.sets[i][GetLane()];
    mine |= sets.own[i] >= 0 ? 1u << sets.own[i] : 0;
  }
  sets.present = __reduce_or_sync(model::kAllLanes, mine);
  return LoadInner([&](int row, int vector) {
    return static_cast<unsigned>(__cvta_generic_to_shared(stage.PlaceInner(row, vector)));
  });
}

// Returns `inner` with zeros in the rows of other sets, which so do not change a bit of a row's result.
__device__ __forceinline__ Inner TakeSet(const Inner& inner, const Sets& sets, int set) {
  Inner own;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) own.parts[s][i] = sets.own[i % 2] == set ? inner.parts[s][i] : 0;
  }
  return own;
}

// values[row][i] = base[row][i] + what the adapter adds to its columns from `column` on. `inner`: of depth 0; with
// kDeep, which ranks above kDepth need, it is not used. All lanes of the warp must call it, with the same `adapter` and
// `column`.
template <bool kDeep>
__device__ __forceinline__ void Add(const AdaptedProduct& product, int adapter, const bf16* y, int first_row,
                                    const Sets& sets, int column, const Vector* base, const Inner& inner, Outer& outer,
                                    float (*values)[kVector]) {
  float sums[kLaneRows][kVector] = {};
#pragma unroll 1
  for (unsigned left = adapter < 0 ? 0 : sets.present; left != 0; left &= left - 1) {
    const int set = __ffs(left) - 1;
    if constexpr (kDeep) {
#pragma unroll 1
      for (int depth = 0; depth < product.rank; depth += kDepth) {
        ReadOuter(product, adapter, column, set, depth, outer);
        Multiply(TakeSet(ReadInner(product, adapter, y, first_row, sets, depth), sets, set), outer, sums);
      }
    } else {
      if (outer.set != set) ReadOuter(product, adapter, column, set, /*depth=*/0, outer);
      Multiply(TakeSet(inner, sets, set), outer, sums);
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
