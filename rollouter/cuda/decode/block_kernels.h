#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rollouter/cuda/decode/paged_cache.h"

// Kernels that copy blocks of keys and values. Launches queue the work, return, and are chained
// (model/cuda/device_code.cuh).
namespace syncopate::rollouter {

// The places of blocks as bytes: the keys of one block in one layer are at keys + layer * layer_stride + block *
// block_stride, its values at the same offset from `values`. Device memory, or page-locked memory of the host.
struct BlockPlaces {
  char* keys = nullptr;
  char* values = nullptr;
  int64_t layer_stride = 0;
  int64_t block_stride = 0;
};

struct BlockPair {
  int32_t from = 0;
  int32_t to = 0;
};

// Copies `count` whole blocks of `block_bytes` (a multiple of 16) in all layers. The device reads `pairs`; no block is
// the target of two pairs, and none is source and target.
cudaError_t CopyBlocks(const BlockPair* pairs, int32_t count, int32_t layers, int64_t block_bytes,
                       const BlockPlaces& from, const BlockPlaces& to, cudaStream_t stream);

// The tokens of several sequences in one row: sequence i is in slots[i] and has the tokens [key_starts[i], key_starts[i
// + 1]). Device memory.
struct PackedSequencesOf {
  const int32_t* slots = nullptr;
  const int32_t* key_starts = nullptr;  // [sequences + 1]
  int32_t sequences = 0;
  int32_t keys = 0;  // at least the number of tokens of all sequences
};

// Copies keys and values of these tokens in `layer` to `keys` and `values`, dense [keys, kv_heads, head_dim]. head_dim
// is a multiple of 8. Only the tables of `rows` are read.
cudaError_t PackTokens(const PackedSequencesOf& sequences, const PagedRows& rows, const HeadCounts& heads,
                       const BlockStorage& storage, int32_t layer, void* keys, void* values, cudaStream_t stream);

}  // namespace syncopate::rollouter
