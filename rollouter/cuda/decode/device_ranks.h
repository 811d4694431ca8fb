#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "model/cuda/row_kernels.h"

namespace syncopate::rollouter {

// What the ranks of one replica do together in a decoder's passes: all make the same calls, in the same order, on device
// memory. Errors: UNAVAILABLE reason RANK_LOST.
class DeviceRanks {
 public:
  virtual ~DeviceRanks() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t world() const = 0;

  // Two pieces of memory for this rank's parts of what is summed, for `rows` rows of `hidden` elements each; PartsBytes()
  // says what they take. Once; blocks until all ranks have theirs. RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY.
  virtual absl::StatusOr<std::array<void*, 2>> MakeParts(int32_t rows, int32_t hidden) = 0;
  static int64_t PartsBytes(int32_t world, int32_t rows, int32_t hidden) {
    return int64_t{rows} * (int64_t{2} * 2 * hidden + int64_t{4} * (world + 1)) + (int64_t{4} << 20);
  }

  // These two are queued, and may be captured in a graph.
  // residual += the sum over ranks of what is in piece `which`; normed = RmsNorm(residual) * weight. As AddAndNorm of
  // model/cuda/row_kernels.h; the same bits on every rank. The two pieces take turns.
  virtual absl::Status SumAndNorm(int which, const model::NormShape& shape, const void* weight, void* residual,
                                  void* normed, cudaStream_t stream) = 0;
  // data [bytes] := that of rank 0.
  virtual absl::Status Broadcast(void* data, int64_t bytes, cudaStream_t stream) = 0;

  // OK, or why the group is at its end: asked while the device is waited for, which a rank that is gone would hold for
  // ever otherwise. After an error what was queued ends.
  virtual absl::Status Check() = 0;
};

}  // namespace syncopate::rollouter
