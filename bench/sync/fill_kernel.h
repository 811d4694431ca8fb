#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace syncopate::bench {

// A piece of a tensor in a shard: the tensor's elements first + row * stride + column, stored densely at `to`.
struct FillPiece {
  uint64_t tensor = 0;
  int64_t first = 0;
  int64_t stride = 0;
  int64_t row_elements = 0;
  int64_t elements = 0;
  char* to = nullptr;    // device memory
  bool as_float = true;  // false: bf16
};

// Writes the weights (bench_weights.h) of one piece at `step`. Asynchronous on `stream`, of the current device.
cudaError_t LaunchFill(const FillPiece& piece, uint64_t step, cudaStream_t stream);

}  // namespace syncopate::bench
