#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "rollouter/cuda/decode/paged_cache.h"

// Attention of query tokens over paged keys and values, for head sizes 64 and 128 and groups of 1 to 8 query heads per
// key/value head, in bf16 with float32 sums.
//
// The keys of all rows and heads, in tiles of 64 tokens, are one line that is cut into equal pieces, one for each block
// of a grid that fills the GPU, so lengths need not be alike. A piece may begin and end inside a row: parts of a row
// are merged by whichever block finishes last. Where the cuts fall depends on all lengths, so the last bits of a row's
// result depend on the batch, unless they fall between rows only. Launches are chained (model/cuda/device_code.cuh).
namespace syncopate::rollouter {

constexpr int32_t kMaxAttentionRows = 4096;
constexpr int32_t kMaxGroup = 8;

// Descriptions of the storage for the GPU's copy engine. They hold its addresses, so they stay valid with them.
struct StorageMaps {
  CUtensorMap keys;
  CUtensorMap values;
};

// `encode` is the driver's cuTensorMapEncodeTiled. Returns the driver's answer; CUDA_ERROR_INVALID_VALUE for heads that
// the kernel is not made for.
CUresult DescribeStorage(decltype(&::cuTensorMapEncodeTiled) encode, const BlockStorage& storage,
                         const HeadCounts& heads, StorageMaps* maps);

// Device memory of one batch size, used by one step at a time. CutBytes and so on give the bytes of each.
struct AttentionScratch {
  int32_t* row_tiles = nullptr;  // [rows + 1], running sums
  int4* pieces = nullptr;        // [2 * grid]
  float* parts = nullptr;        // of rows that several blocks share
  int32_t* arrivals = nullptr;   // [rows * kv_heads], zero at first, left zero
};
struct AttentionScratchBytes {
  int64_t row_tiles = 0;
  int64_t pieces = 0;
  int64_t parts = 0;
  int64_t arrivals = 0;
};
AttentionScratchBytes ScratchBytes(const HeadCounts& heads, int32_t rows, int32_t grid);

// Blocks that run at a time on a GPU of `multiprocessors`.
int32_t AttentionGrid(int32_t multiprocessors);

// Raises the kernels' shared-memory limits on the current device and loads them; before the first capture.
cudaError_t PrepareAttention(const HeadCounts& heads);

enum class Cuts : uint8_t {
  kAnywhere,     // pieces are equal
  kBetweenRows,  // no head of a row is in two pieces: its bits depend on its own tokens alone; pieces are less equal
  // Neighbouring rows that are neighbouring tokens of one sequence attend jointly, up to 8 of them, or 4 for head size
  // 128, so that keys are read once for all. A row has the bits that kBetweenRows gives it.
  kBetweenWindows,
};
// The kernel's blocks, of a grid, and the rows that may attend jointly.
int32_t AttentionBlocks(int32_t grid, Cuts cuts);
int32_t AttentionWindow(const HeadCounts& heads, Cuts cuts);

// Cuts the work of a step; once for all layers, after lengths are known. At most kMaxAttentionRows rows.
cudaError_t PlanAttention(const PagedRows& rows, const HeadCounts& heads, int32_t grid, Cuts cuts,
                          const AttentionScratch& scratch, cudaStream_t stream);

enum class RowsOf : uint8_t {
  kDifferentSequences,  // a row each
  kAnySequences,        // several rows may be tokens of one sequence, which the kernel before has appended
};

// out[r, h] = softmax(queries[r, h] . keys / sqrt(head_dim)) . values over the row's tokens in `layer`; queries and out
// [rows, heads, head_dim]. `cuts` as they were planned; kBetweenWindows wants kAnySequences. Empty rows are not written.
// With kDifferentSequences all but the block of a row's last token may be read before the kernel before this one on the
// stream ends: that one may write only rows' last tokens. What PlanAttention wrote is read before that, always: another
// kernel must be between the two.
cudaError_t AttendPaged(const PagedRows& rows, const HeadCounts& heads, const StorageMaps& maps,
                        const BlockStorage& storage, int32_t layer, int32_t grid, const AttentionScratch& scratch,
                        const void* queries, void* out, RowsOf rows_of, Cuts cuts, cudaStream_t stream);

}  // namespace syncopate::rollouter
