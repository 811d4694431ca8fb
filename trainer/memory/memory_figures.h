#pragma once

#include <cstdint>

// Figures of a policy's memory; plain data, without libtorch.
namespace syncopate::trainer {

// The cost of moving a part of the state between device and host. If nothing moved, every member is exactly 0.
struct StateMoves {
  double load_seconds = 0;     // to the device, from the call until the bytes are there
  double offload_seconds = 0;  // to the host, until the device has its memory back
  int64_t bytes = 0;           // copied, both ways together

  StateMoves& operator+=(const StateMoves& other) {
    load_seconds += other.load_seconds;
    offload_seconds += other.offload_seconds;
    bytes += other.bytes;
    return *this;
  }
};

// The moves since the figures were last taken.
struct PolicyMoves {
  StateMoves parameters = {}, optimizer = {}, reference = {};
  int64_t cache_flushes = 0;  // how often the allocator returned its unused blocks to the device
};

// The memory at one moment, on the device that the policy computes on.
struct PolicyMemory {
  int64_t allocated_bytes = 0;  // of tensors and of the state
  int64_t reserved_bytes = 0;   // taken from the device for them
  // Bytes of the state that is on the device: weights in float32 and in the type that computes; AdamW's moments;
  // gradients; the reference policy.
  int64_t parameter_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t reference_bytes = 0;
  // What those four have there while an update is made, wherever the state is now.
  int64_t update_bytes = 0;
};

}  // namespace syncopate::trainer
