#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Kernels for attention over keys and values in blocks. No libtorch, so that nvcc compiles this alone. A block is
// [block_tokens, kv_heads, head_dim] for the keys of one layer, and another such array for its values.
namespace syncopate::rollouter {

// Device memory that places the rows of a batch: row r is token position[r] of a sequence whose token t is in block
// blocks[table[r] * table_stride + t / block_tokens], at t % block_tokens.
struct RowTable {
  const int32_t* blocks = nullptr;
  int64_t table_stride = 0;
  const int32_t* table = nullptr;
  const int32_t* position = nullptr;
  int32_t block_tokens = 0;
  int64_t rows = 0;
};

// The part of all blocks that belongs to one layer; strides in elements.
struct CacheLayer {
  void* keys = nullptr;
  void* values = nullptr;
  int64_t block_stride = 0;
  int64_t position_stride = 0;  // kv_heads * head_dim
};

struct HeadShape {
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
};

constexpr int32_t kMaxHeadDim = 256;

enum class CacheElement : uint8_t { kFloat32, kBFloat16 };

// Writes k and v, dense [rows, kv_heads, head_dim] of `element`, to the rows' places. Queues the work and returns.
cudaError_t StoreRows(CacheElement element, const RowTable& table, const CacheLayer& cache, const void* k,
                      const void* v, cudaStream_t stream);

// Computes out[r, h] = softmax(q[r, h] . keys / sqrt(head_dim)) . values over positions [0, position[r]] of the row's
// sequence; q and out are dense [rows, heads, head_dim] of `element`. Computes in float32, in an order that depends
// only on the row's position. INVALID_VALUE for a head_dim above kMaxHeadDim. Queues the work and returns.
cudaError_t AttendRows(CacheElement element, const RowTable& table, const CacheLayer& cache, const HeadShape& shape,
                       const void* q, void* out, cudaStream_t stream);

}  // namespace syncopate::rollouter
