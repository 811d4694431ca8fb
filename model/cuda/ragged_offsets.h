#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace syncopate::model {

// The positions of packed sequences as cuDNN needs them: int32 arrays, each aligned to 16 bytes, in one piece of device
// memory. First the lengths in queries and in keys, then one array of offsets for each tensor.
struct RaggedOffsets {
  static constexpr int kTensors = 5;
  static constexpr int kArrays = 2 + kTensors;

  int32_t batch = 0;               // sequences, the empty ones at the end included
  int32_t strides[kTensors] = {};  // elements from row to row
  bool of_keys[kTensors] = {};     // whether the tensor's rows are those of keys, not of queries

  // Elements of one array, with its padding.
  constexpr int64_t Elements() const { return (int64_t{batch} + 4) / 4 * 4; }
  int64_t bytes() const { return kArrays * Elements() * int64_t{sizeof(int32_t)}; }
  // [batch] rows of each sequence.
  int32_t* QueryLengths(int32_t* memory) const { return memory; }
  int32_t* KeyLengths(int32_t* memory) const { return memory + Elements(); }
  // [batch + 1] elements before each sequence, and before the end.
  int32_t* Offsets(int32_t* memory, int tensor) const { return memory + (2 + tensor) * Elements(); }
};

// Fills `memory` (device, ragged.bytes()) from the starts of `count` sequences: query_starts and key_starts [count +
// 1], device memory. `count` is at most ragged.batch. Queues and returns.
cudaError_t FillRaggedOffsets(const RaggedOffsets& ragged, const int32_t* query_starts, const int32_t* key_starts,
                              int32_t count, int32_t* memory, cudaStream_t stream);

}  // namespace syncopate::model
