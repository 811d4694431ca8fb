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

  struct Extent {
    int32_t rows = 0, hidden = 0;  // of what is summed
    int64_t logits_bytes = 0;
  };
  struct Memory {
    std::array<void*, 2> parts = {};  // two pieces for this rank's parts of what is summed, [rows, hidden] bf16 each
    // Rank 0's memory for logits, in which every rank writes its part of the vocabulary; null on the others if they cannot.
    void* logits = nullptr;
    bool shares_logits = false;  // they can; the same on every rank
  };
  // Once; blocks until all ranks have theirs. RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY.
  virtual absl::StatusOr<Memory> MakeMemory(const Extent& extent) = 0;
  // What it takes of this device.
  static int64_t MemoryBytes(int32_t world, const Extent& extent) {
    return int64_t{extent.rows} * (int64_t{2} * 2 * extent.hidden + int64_t{4} * (world + 1)) + extent.logits_bytes +
           (int64_t{4} << 20);
  }

  // These are queued, and may be captured in a graph.
  // residual += the sum over ranks of what is in piece `which`; normed = RmsNorm(residual) * weight. As AddAndNorm of
  // model/cuda/row_kernels.h; the same bits on every rank. The two pieces take turns.
  virtual absl::Status SumAndNorm(int which, const model::NormShape& shape, const void* weight, void* residual,
                                  void* normed, cudaStream_t stream) = 0;
  // What each rank has written to the logits before is complete when any rank goes on. A rank that writes there again has
  // called SumAndNorm in between: by that rank 0 has read them.
  virtual absl::Status JoinLogits(cudaStream_t stream) = 0;
  // data [bytes] := that of rank 0.
  virtual absl::Status Broadcast(void* data, int64_t bytes, cudaStream_t stream) = 0;

  // OK, or why the group is at its end: asked while the device is waited for, which a rank that is gone would hold for
  // ever otherwise. After an error what was queued ends.
  virtual absl::Status Check() = 0;
};

}  // namespace syncopate::rollouter
