#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/block_kernels.h"

namespace syncopate::rollouter {
namespace {

using model::bf16;
using model::kVector;

constexpr int kThreads = 256;
constexpr int kMostBlocksAcross = 65535;

// Each block of the grid copies one block's keys or values of one layer.
__global__ void __launch_bounds__(kThreads)
    Copy(const BlockPair* pairs, int32_t layers, int64_t vectors, BlockPlaces from, BlockPlaces to) {
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const BlockPair pair = pairs[blockIdx.x];
  const int64_t layer = blockIdx.y % layers;
  const bool of_values = blockIdx.y >= static_cast<unsigned>(layers);
  const int4* source = reinterpret_cast<const int4*>((of_values ? from.values : from.keys) + layer * from.layer_stride +
                                                     pair.from * from.block_stride);
  int4* target =
      reinterpret_cast<int4*>((of_values ? to.values : to.keys) + layer * to.layer_stride + pair.to * to.block_stride);
  for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) target[i] = source[i];
}

// Each thread moves one vector of a token's keys and the matching vector of its values.
__global__ void __launch_bounds__(kThreads)
    Pack(PackedSequencesOf sequences, PagedRows rows, int32_t kv_heads, int32_t dim, const bf16* keys,
         const bf16* values, model::Vector* packed_keys, model::Vector* packed_values) {
  model::WaitForEarlierKernels();
  model::LetNextKernelStart();
  const int vectors_a_head = dim / kVector, vectors = kv_heads * vectors_a_head;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= static_cast<int64_t>(sequences.key_starts[sequences.sequences]) * vectors) return;
  const int token = static_cast<int>(at / vectors), vector = static_cast<int>(at % vectors);
  int low = 0, high = sequences.sequences - 1;  // finds the last sequence that begins at or before the token
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (sequences.key_starts[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int position = token - sequences.key_starts[low];
  const int64_t block =
      rows.tables[static_cast<int64_t>(sequences.slots[low]) * rows.table_stride + position / kTokensPerBlock];
  const int head = vector / vectors_a_head, element = vector % vectors_a_head * kVector;
  const int64_t from = ((block * kv_heads + head) * kTokensPerBlock + position % kTokensPerBlock) * dim + element;
  model::Write(packed_keys + at, model::Read(keys + from));
  model::Write(packed_values + at, model::Read(values + from));
}

}  // namespace

cudaError_t CopyBlocks(const BlockPair* pairs, int32_t count, int32_t layers, int64_t block_bytes,
                       const BlockPlaces& from, const BlockPlaces& to, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (count < 0 || layers <= 0 || 2 * layers > kMostBlocksAcross || block_bytes % 16 != 0) return cudaErrorInvalidValue;
  return model::LaunchChained(Copy, dim3(static_cast<unsigned>(count), static_cast<unsigned>(2 * layers)),
                              dim3(kThreads), 0, stream, pairs, layers, block_bytes / 16, from, to);
}

cudaError_t PackTokens(const PackedSequencesOf& sequences, const PagedRows& rows, const HeadCounts& heads,
                       const BlockStorage& storage, int32_t layer, void* keys, void* values, cudaStream_t stream) {
  if (sequences.sequences <= 0 || sequences.keys <= 0 || heads.head_dim % kVector != 0) return cudaErrorInvalidValue;
  const int64_t layer_elements = storage.layer_pieces * heads.kv_heads * kTokensPerBlock * heads.head_dim;
  const int64_t vectors = static_cast<int64_t>(sequences.keys) * heads.kv_heads * (heads.head_dim / kVector);
  return model::LaunchChained(Pack, dim3(static_cast<unsigned>((vectors + kThreads - 1) / kThreads)), dim3(kThreads), 0,
                              stream, sequences, rows, heads.kv_heads, heads.head_dim,
                              static_cast<const bf16*>(storage.keys) + layer * layer_elements,
                              static_cast<const bf16*>(storage.values) + layer * layer_elements,
                              static_cast<model::Vector*>(keys), static_cast<model::Vector*>(values));
}

}  // namespace syncopate::rollouter
