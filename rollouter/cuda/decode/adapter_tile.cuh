#pragma once

#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/adapter_kernels.h"

// What adapters add to a tile of 16 rows and 32 columns of a product y: the work of one warp, by its tensor cores and
// without shared memory. For .cu files only.
//
// A lane has two rows of the tile, lane / 4 and the one eight further, and of each of them eight adjacent columns from
// 8 (lane % 4) on, which are one 16-byte access. The instruction m16n8k16 gives a lane two adjacent columns; the n-th of
// four instructions therefore computes columns 8 i + 2 n and 8 i + 2 n + 1, for i = 0 .. 3. A sum over the rank may be
// in any order, so a lane reads eight adjacent elements of x a^T and of b and passes four of them to each of two
// instructions.
namespace syncopate::rollouter::adapter_tile {

using model::bf16;
using model::kVector;
using model::kWarp;
using model::Vector;

constexpr int kRows = 16, kColumns = 32;
constexpr int kLaneRows = 2;
constexpr int kDepth = 32;  // elements of the rank that are multiplied at once

__device__ __forceinline__ int GetLane() { return static_cast<int>(threadIdx.x) % kWarp; }
// The first of this lane's columns in the tile, and of its elements of the rank in a part of kDepth.
__device__ __forceinline__ int GetElement() { return GetLane() % 4 * kVector; }

__device__ __forceinline__ int GetStride(const AdaptedProduct& product) {
  return product.columns + kDecodedAdapterSets * product.count * product.rank;
}

// Zeros unless `reads`. ReadIf and Write are one access of 16 bytes each: a copy of a Vector is compiled to four of 4
// bytes, because its members have copy operators.
__device__ __forceinline__ Vector ReadIf(bool reads, const bf16* from) {
  uint4 bits = {};
  if (reads) bits = *reinterpret_cast<const uint4*>(from);
  return *reinterpret_cast<const Vector*>(&bits);
}

__device__ __forceinline__ void Write(bf16* to, const float* values) {
  const Vector vector = model::Narrow(values);
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(&vector);
}

struct Rows {
  int at[kLaneRows];    // this lane's rows
  int sets[kLaneRows];  // below 0: no adapter, or a row behind the last one
  unsigned present;     // a bit for each set that one of the tile's rows has
};

// All lanes of the warp must call it.
__device__ __forceinline__ Rows ReadRows(const AdaptedProduct& product, int first_row) {
  Rows rows;
  unsigned mine = 0;
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    rows.at[i] = first_row + GetLane() / 4 + i * kRows / 2;
    rows.sets[i] = rows.at[i] < product.rows ? product.sets[rows.at[i]] : -1;
    if (rows.sets[i] >= 0) mine |= 1u << rows.sets[i];
  }
  rows.present = __reduce_or_sync(model::kAllLanes, mine);
  return rows;
}

// The lane's vectors of the columns from `column` on of a matrix of `columns` columns.
__device__ __forceinline__ void ReadColumns(const AdaptedProduct& product, const bf16* from, int stride,
                                            const Rows& rows, int column, int columns, Vector* vectors) {
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    vectors[i] = ReadIf(rows.at[i] < product.rows && column + GetElement() < columns,
                        from + static_cast<int64_t>(rows.at[i]) * stride + column + GetElement());
  }
}

// The lane's elements from `depth` on of x a^T of its rows, by their own sets. `adapter` below 0: none.
__device__ __forceinline__ void ReadInner(const AdaptedProduct& product, int adapter, const bf16* y, const Rows& rows,
                                          int depth, Vector* inner) {
  const int element = depth + GetElement();
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    const int column = product.columns + (rows.sets[i] * product.count + adapter) * product.rank + element;
    inner[i] = ReadIf(adapter >= 0 && rows.sets[i] >= 0 && element < product.rank,
                      y + static_cast<int64_t>(rows.at[i]) * GetStride(product) + column);
  }
}

// The lane's part of b for the tile's columns and kDepth elements of the rank. It stays in registers: most tiles of the
// same columns need the same part.
struct Outer {
  int set = -1;
  int depth = 0;
  Vector columns[kColumns / 8];
};

__device__ __forceinline__ void ReadOuter(const AdaptedProduct& product, int adapter, int column, int set, int depth,
                                          Outer& outer) {
  if (outer.set == set && outer.depth == depth) return;
  outer.set = set, outer.depth = depth;
  const bf16* b = static_cast<const bf16*>(product.adapters[adapter].b[set]);
  const int element = depth + GetElement(), lane = GetLane();
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const int output = column + lane / 8 * 8 + 2 * n + lane / 4 % 2;
    outer.columns[n] = ReadIf(output < product.adapters[adapter].outputs && element < product.rank,
                              b + static_cast<int64_t>(output) * product.rank + element);
  }
}

// Reads what the first set of the tile needs. ReadRows and this may run before the earlier kernels end: no kernel of a
// pass writes sets or B.
__device__ __forceinline__ void ReadFirstOuter(const AdaptedProduct& product, int adapter, int column, const Rows& rows,
                                               Outer& outer) {
  if (adapter >= 0 && rows.present != 0) ReadOuter(product, adapter, column, __ffs(rows.present) - 1, 0, outer);
}

__device__ __forceinline__ unsigned GetBits(const __nv_bfloat162& pair) {
  return *reinterpret_cast<const unsigned*>(&pair);
}

// sums += left right^T for the n-th two columns of each eight.
__device__ __forceinline__ void Multiply(const Vector* left, const Vector& right, int n, float (*sums)[kVector]) {
#pragma unroll
  for (int k = 0; k < kVector / 2; k += 2) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0][2 * n]), "+f"(sums[0][2 * n + 1]), "+f"(sums[1][2 * n]), "+f"(sums[1][2 * n + 1])
        : "r"(GetBits(left[0].pairs[k])), "r"(GetBits(left[1].pairs[k])), "r"(GetBits(left[0].pairs[k + 1])),
          "r"(GetBits(left[1].pairs[k + 1])), "r"(GetBits(right.pairs[k])), "r"(GetBits(right.pairs[k + 1])));
  }
}

// values[row][i] = base[row][i] + what the adapter adds to its columns from `column` on. `inner`: ReadInner at depth 0;
// overwritten. Rows of other sets are multiplied as zeros, so they do not change a bit of a row's result. All lanes of
// the warp must call it, with the same `adapter` and `column`.
__device__ __forceinline__ void Add(const AdaptedProduct& product, int adapter, const bf16* y, const Rows& rows,
                                    int column, const Vector* base, Vector* inner, Outer& outer,
                                    float (*values)[kVector]) {
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) model::Widen(base[i], values[i]);
  if (adapter < 0 || rows.present == 0) return;
  float sums[kLaneRows][kVector] = {};
  for (int depth = 0; depth < product.rank; depth += kDepth) {
    if (depth > 0) ReadInner(product, adapter, y, rows, depth, inner);
    for (int set = 0; set < kDecodedAdapterSets; ++set) {
      if ((rows.present >> set & 1u) == 0) continue;
      ReadOuter(product, adapter, column, set, depth, outer);
      Vector left[kLaneRows];
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) left[i] = rows.sets[i] == set ? inner[i] : Vector{};
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) Multiply(left, outer.columns[n], n, sums);
    }
  }
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[i][j] += product.scale * sums[i][j];
  }
}

}  // namespace syncopate::rollouter::adapter_tile
