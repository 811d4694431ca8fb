#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// The operations of a transformer on single rows (tokens) between its matrix products, in bf16. They round where
// model/transformer.h rounds, so that a trainer's forward pass gives the same numbers. All pointers are device memory
// of the current device, 16-byte aligned, matrices dense and row-major; all launches queue and return, and are chained
// (device_code.cuh): each may start while the kernel before it on the stream ends. No libtorch, so that nvcc can
// compile it.
namespace syncopate::model {

// The source of a row's input token: given[row], or, if that is negative, drawn[slots[row]], which an earlier step has
// written on the device.
struct TokenSource {
  const int32_t* given = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* drawn = nullptr;
};

struct NormShape {
  int32_t rows = 0;
  int32_t hidden = 0;  // a multiple of 8, at most kMaxHidden
  float epsilon = 0;
};
constexpr int32_t kMaxHidden = 8192;

// The position embedding that is added to a row's token: table[lengths[row] - 1]; a length of 0 counts as 1.
struct PositionSource {
  const int32_t* lengths = nullptr;
  const void* table = nullptr;  // nullptr: no position embedding
};

// residual[row] = table[token of the row] + its position embedding; normed = RmsNorm(residual) * weight.
cudaError_t EmbedAndNorm(const NormShape& shape, const TokenSource& tokens, const PositionSource& positions,
                         const void* table, const void* weight, void* residual, void* normed, cudaStream_t stream);

// residual += added, unless `added` is nullptr; normed = RmsNorm(residual) * weight.
cudaError_t AddAndNorm(const NormShape& shape, const void* added, const void* weight, void* residual, void* normed,
                       cudaStream_t stream);

// gathered[i] = from[rows[i]], for `shape.rows` rows.
cudaError_t GatherRows(const NormShape& shape, const int32_t* rows, const void* from, void* gathered,
                       cudaStream_t stream);

// activated[row] = silu(gate_up[row][0 .. width)) * gate_up[row][width .. 2 width). `width` is a multiple of 8.
cudaError_t SwiGlu(int32_t rows, int32_t width, const void* gate_up, void* activated, cudaStream_t stream);

}  // namespace syncopate::model
