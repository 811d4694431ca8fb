#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rollouter/cuda/decode/adapter_kernels.h"

// Keys and values in blocks of 16 tokens, and the kernel that appends to them. Everything is bf16 device memory;
// launches queue the work, return, and are chained (model/cuda/device_code.cuh). No libtorch, so that nvcc compiles
// this alone.
namespace syncopate::rollouter {

constexpr int32_t kTokensPerBlock = 16;

struct HeadCounts {
  int32_t heads = 0;
  int32_t kv_heads = 0;  // divides heads
  int32_t head_dim = 0;
};

// The memory of the blocks. The keys of a block in a layer are one piece, [kv_heads, kTokensPerBlock, head_dim], so that
// one head's part of it is contiguous; so are its values. The piece of keys at place p, in layer l, is number p + l *
// layer_pieces behind `keys`, that of values the same behind `values`. Places are what tables name: block numbers, unless
// the storage is cut into parts (rollouter/engine/kv_parts.h). The addresses must stay valid as long as a copy of this
// struct is used.
struct BlockStorage {
  void* keys = nullptr;
  void* values = nullptr;
  int32_t layers = 0;
  int64_t layer_pieces = 0;
  int64_t pieces = 0;  // an upper bound of all numbers of pieces, behind `keys` or behind `values`
};

// The rows of a step. Row r is a token of the sequence in slots[r], which has lengths[r] tokens including it; length 0
// is an empty row, for which nothing is computed. Token t of slot s is in the block at place tables[s * table_stride +
// t / kTokensPerBlock].
struct PagedRows {
  const int32_t* slots = nullptr;
  const int32_t* lengths = nullptr;
  const int32_t* tables = nullptr;
  int32_t table_stride = 0;
  int32_t rows = 0;
};

// The inputs of the append kernel besides the rows.
struct AppendInputs {
  const void* qkv = nullptr;     // [rows, (heads + 2 kv_heads) * head_dim]
  const void* q_norm = nullptr;  // [head_dim] each; both nullptr if queries and keys are not normed
  const void* k_norm = nullptr;
  float epsilon = 0;
  const float* rotations = nullptr;  // [positions, head_dim / 2, 2]: cosine and sine
  // Not nullptr: qkv is the result of this product, whose adapters are added first. Each head is in the columns of one
  // adapter or of none, and head_dim is 64 or 128. The rows' numbers and tables must have been written before the
  // product began.
  const AdaptedProduct* adapters = nullptr;
};

// Adds the adapters (if there are any), norms (if q_norm is set) and rotates queries and keys by each row's position,
// lengths - 1. Writes queries to `queries` [rows, heads, head_dim], and keys and values into the rows' blocks of
// `layer`. head_dim: 32, 64, 128 or 256. Rounds at the same places as model/transformer.h.
cudaError_t RotateAndAppend(const PagedRows& rows, const HeadCounts& heads, const AppendInputs& inputs,
                            const BlockStorage& storage, int32_t layer, void* queries, cudaStream_t stream);

}  // namespace syncopate::rollouter
