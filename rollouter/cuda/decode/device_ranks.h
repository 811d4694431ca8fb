#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "model/cuda/row_kernels.h"

namespace syncopate::rollouter {

// The collectives of a replica's ranks in a decoder's passes: all ranks make the same calls, in the same order, on
// device memory. Errors: UNAVAILABLE (reason RANK_LOST).
class DeviceRanks {
 public:
  virtual ~DeviceRanks() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t world() const = 0;

  struct Extent {
    int32_t rows = 0, hidden = 0;  // the size of the summed rows
    int64_t logits_bytes = 0;
  };
  struct Memory {
    std::array<void*, 2> parts = {};  // two buffers for this rank's parts of sums, [rows, hidden] bf16 each
    // Rank 0's memory for logits, into which every rank writes its part of the vocabulary; null on other ranks that
    // cannot access it.
    void* logits = nullptr;
    bool shares_logits = false;  // every rank can write them; equal on all ranks
  };
  // Call once; blocks until all ranks have their memory. RESOURCE_EXHAUSTED (reason OUT_OF_GPU_MEMORY).
  virtual absl::StatusOr<Memory> MakeMemory(const Extent& extent) = 0;
  // The bytes of device memory that MakeMemory() needs.
  static int64_t MemoryBytes(int32_t world, const Extent& extent) {
    return int64_t{extent.rows} * (int64_t{2} * 2 * extent.hidden + int64_t{4} * (world + 1)) + extent.logits_bytes +
           (int64_t{4} << 20);
  }

  // The following calls are queued, and may be captured in a graph.
  //
  // residual += the sum over ranks of buffer `which`; normed = RmsNorm(residual) * weight. Rounds as AddAndNorm of
  // model/cuda/row_kernels.h; results are bit-identical on every rank. Calls must alternate between the two buffers.
  virtual absl::Status SumAndNorm(int which, const model::NormShape& shape, const void* weight, void* residual,
                                  void* normed, cudaStream_t stream) = 0;
  // After this, all logits that ranks wrote before it are complete on every rank. A rank may write logits again only
  // after a later SumAndNorm, by which rank 0 has read them.
  virtual absl::Status JoinLogits(cudaStream_t stream) = 0;
  // Copies rank 0's data [bytes] to every rank.
  virtual absl::Status Broadcast(void* data, int64_t bytes, cudaStream_t stream) = 0;

  // OK, or why the group has failed. Call it while waiting for the device, because a lost rank would otherwise block
  // the wait forever. After an error the queued work ends.
  virtual absl::Status Check() = 0;
};

}  // namespace syncopate::rollouter
