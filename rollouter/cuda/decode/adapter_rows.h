#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/stream.h"
#include "rollouter/cuda/decode/decode_model.h"

namespace syncopate::rollouter {

// The rows behind a decoder's matrices in which the A of adapter sets are multiplied with (DecodeLayer): copies a set's A of all
// layers there. Which set lies in which place is decided elsewhere (rollouter/engine/adapter_places.h). No libtorch.
// Move-only; not thread-safe.
class AdapterRows {
 public:
  AdapterRows() = default;  // of a model without adapters
  // Lists the addresses of all copies, in device memory of this object. `weights` keep their addresses; the memory behind
  // them may change. RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY, INTERNAL reason CUDA_ERROR. Blocks.
  static absl::StatusOr<AdapterRows> Create(int device, const DecodeShape& shape, const DecodeWeights& weights);

  // Queues the copies of a set's A to a place, behind all earlier work of the stream, and returns. INTERNAL reason
  // CUDA_ERROR. Precondition: the model has adapters.
  absl::Status Queue(int32_t set, int32_t place, cudaStream_t stream) const;

 private:
  cuda::DeviceBuffer copies_;  // AdapterCopy[kDecodedAdapterSets][kAdapterPlaces][count_]
  int32_t count_ = 0;          // copies of one set
};

}  // namespace syncopate::rollouter
