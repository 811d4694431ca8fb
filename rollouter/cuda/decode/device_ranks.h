#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"

namespace syncopate::rollouter {

// What the ranks of one replica do together in a decoder's passes: all make the same calls, in the same order, on device
// memory. The calls are queued, and may be captured in a graph. Errors: UNAVAILABLE reason RANK_LOST.
class DeviceRanks {
 public:
  virtual ~DeviceRanks() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t world() const = 0;
  // values [count] bf16 := their sum over ranks, of the same bits on every rank.
  virtual absl::Status Sum(void* values, int64_t count, cudaStream_t stream) = 0;
  // data [bytes] := that of rank 0.
  virtual absl::Status Broadcast(void* data, int64_t bytes, cudaStream_t stream) = 0;
  // OK, or why the group is at its end: asked while the device is waited for, which a rank that is gone would hold for
  // ever otherwise.
  virtual absl::Status Check() = 0;
};

}  // namespace syncopate::rollouter
