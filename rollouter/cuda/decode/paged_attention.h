#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "rollouter/cuda/decode/paged_cache.h"

// Attention of query tokens over paged keys and values, for head sizes 64 and 128 and groups of 1 to 8 query heads per
// key/value head, in bf16 with float32 sums.
//
// The keys of all rows and heads, in tiles of 64 tokens, form one line. The line is cut into equal pieces, one for each
// block of a grid that fills the GPU, so rows may have different lengths. A piece may begin and end inside a row; the
// block that finishes last merges the parts of the row. The cuts depend on all lengths, so the last bits of a row's
// result depend on the batch, unless cuts are only between rows. Launches are chained (model/cuda/device_code.cuh).
namespace syncopate::rollouter {

constexpr int32_t kMaxAttentionRows = 4096;
constexpr int32_t kMaxGroup = 8;

// Descriptions of the storage for the GPU's copy engine. They contain its addresses, and are valid as long as the
// storage.
struct StorageMaps {
  CUtensorMap keys;
  CUtensorMap values;
};

// `encode` is the driver's cuTensorMapEncodeTiled. Returns the driver's result; CUDA_ERROR_INVALID_VALUE for heads that
// the kernel does not support.
CUresult DescribeStorage(decltype(&::cuTensorMapEncodeTiled) encode, const BlockStorage& storage,
                         const HeadCounts& heads, StorageMaps* maps);

// Device memory for one batch size, used by one step at a time. ScratchBytes() gives the size of each array.
struct AttentionScratch {
  int32_t* row_tiles = nullptr;  // [rows + 1], running sums
  int4* pieces = nullptr;        // [2 * grid]
  float* parts = nullptr;        // parts of rows that several blocks share
  int32_t* arrivals = nullptr;   // [rows * kv_heads], initially zero; each launch leaves it zero
};
struct AttentionScratchBytes {
  int64_t row_tiles = 0;
  int64_t pieces = 0;
  int64_t parts = 0;
  int64_t arrivals = 0;
};
AttentionScratchBytes ScratchBytes(const HeadCounts& heads, int32_t rows, int32_t grid);

// The number of thread blocks that run at once on a GPU with `multiprocessors`.
int32_t AttentionGrid(int32_t multiprocessors);

// Raises the kernels' shared-memory limits on the current device and loads the kernels; call it before the first
// capture.
cudaError_t PrepareAttention(const HeadCounts& heads);

enum class Cuts : uint8_t {
  kAnywhere,  // pieces have equal length
  // No head of a row is in two pieces: the row's bits depend only on its own tokens; pieces are less equal.
  kBetweenRows,
  // Adjacent rows that are consecutive tokens of one sequence attend jointly, up to 8 of them, or 4 for head size 128,
  // so that keys are read once for all. A row's result is bit-identical to that with kBetweenRows.
  kBetweenWindows,
};
// The number of thread blocks for a grid, and the most rows that attend jointly.
int32_t AttentionBlocks(int32_t grid, Cuts cuts);
int32_t AttentionWindow(const HeadCounts& heads, Cuts cuts);

// Computes the cuts of a step; call it once for all layers, after lengths are known. At most kMaxAttentionRows rows.
cudaError_t PlanAttention(const PagedRows& rows, const HeadCounts& heads, int32_t grid, Cuts cuts,
                          const AttentionScratch& scratch, cudaStream_t stream);

enum class RowsOf : uint8_t {
  kDifferentSequences,  // each sequence has at most one row
  kAnySequences,        // several rows may be tokens of one sequence, which the previous kernel appended
};

// Computes out[r, h] = softmax(queries[r, h] . keys / sqrt(head_dim)) . values over the row's tokens in `layer`;
// queries and out are [rows, heads, head_dim]. `cuts` as in PlanAttention; kBetweenWindows requires kAnySequences.
// Empty rows are not written. With kDifferentSequences all blocks except those of the rows' last tokens may be read
// before the previous kernel on the stream ends, so that kernel may write only the rows' last tokens. The results of
// PlanAttention are always read before the previous kernel ends, so another kernel must be between the two.
cudaError_t AttendPaged(const PagedRows& rows, const HeadCounts& heads, const StorageMaps& maps,
                        const BlockStorage& storage, int32_t layer, int32_t grid, const AttentionScratch& scratch,
                        const void* queries, void* out, RowsOf rows_of, Cuts cuts, cudaStream_t stream);

}  // namespace syncopate::rollouter
