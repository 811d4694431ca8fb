#include "model/cuda/ragged_offsets.h"

namespace syncopate::model {
namespace {

constexpr int kThreads = 128;

__global__ void Fill(RaggedOffsets ragged, const int32_t* query_starts, const int32_t* key_starts, int32_t count,
                     int32_t* memory) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i > ragged.batch) return;
  const int from = min(i, count), to = min(i + 1, count);
  const int32_t query = query_starts[from], key = key_starts[from];
  const int64_t elements = ragged.Elements();
  if (i < ragged.batch) {
    memory[i] = query_starts[to] - query;
    memory[elements + i] = key_starts[to] - key;
  }
#pragma unroll
  for (int tensor = 0; tensor < RaggedOffsets::kTensors; ++tensor) {
    memory[(2 + tensor) * elements + i] = (ragged.of_keys[tensor] ? key : query) * ragged.strides[tensor];
  }
}

}  // namespace

cudaError_t FillRaggedOffsets(const RaggedOffsets& ragged, const int32_t* query_starts, const int32_t* key_starts,
                              int32_t count, int32_t* memory, cudaStream_t stream) {
  if (count <= 0 || count > ragged.batch) return cudaErrorInvalidValue;
  Fill<<<static_cast<unsigned>(ragged.batch / kThreads + 1), kThreads, 0, stream>>>(ragged, query_starts, key_starts,
                                                                                    count, memory);
  return cudaGetLastError();
}

}  // namespace syncopate::model
