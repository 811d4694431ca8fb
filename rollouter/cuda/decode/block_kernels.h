#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rollouter/cuda/decode/paged_cache.h"

// What happens to blocks of keys and values beside attention, as kernels. Launches queue, return, and are chained
// (model/cuda/device_code.cuh).
namespace syncopate::rollouter {

// Blocks as bytes: one block of a layer's keys lies at keys + layer * layer_stride + block * block_stride, its values
// likewise. Device memory, or page-locked memory of the host.
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

// Copies `count` whole blocks of `block_bytes` (a multiple of 16) in all layers. `pairs` is read by the device; no
// block is the target of two, and none is source and target.
cudaError_t CopyBlocks(const BlockPair* pairs, int32_t count, int32_t layers, int64_t block_bytes,
                       const BlockPlaces& from, const BlockPlaces& to, cudaStream_t stream);

// The tokens of some sequences, one sequence after the other: sequence i is in slots[i] and has the tokens
// [key_starts[i], key_starts[i + 1]) of the line. Device memory.
struct PackedSequencesOf {
  const int32_t* slots = nullptr;
  const int32_t* key_starts = nullptr;  // [sequences + 1]
  int32_t sequences = 0;
  int32_t keys = 0;  // tokens of all, or more
};

// Writes keys and values of these tokens in `layer` to `keys` and `values` [keys, kv_heads, head_dim], dense. head_dim is
// a multiple of 8. Of `rows` only the tables are looked at.
cudaError_t PackTokens(const PackedSequencesOf& sequences, const PagedRows& rows, const HeadCounts& heads,
                       const BlockStorage& storage, int32_t layer, void* keys, void* values, cudaStream_t stream);

}  // namespace syncopate::rollouter
