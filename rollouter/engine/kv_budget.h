#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace syncopate::rollouter {

// The inputs that decide how much device memory keys and values get, after the weights are allocated. In bytes.
struct KvBudget {
  int64_t total = 0;         // the device's memory
  int64_t free = 0;          // the free part of it now
  double share = 0.9;        // the share of total that may be in use in the end; (0, 1]
  int64_t reserved = 0;      // what the engine needs besides keys and values
  int64_t others = 0;        // what the trainer has there at times, on a device that it shares: its send slots
  int64_t block_bytes = 0;   // one block, in all layers
  int64_t max_context = 0;   // tokens of one sequence
  int64_t blocks_asked = 0;  // 0: as many as fit, at most blocks_of_use
  // The most blocks that can be of use.
  int64_t blocks_of_use = 0;
};

// The bytes that the share leaves for keys and values; 0 or more.
int64_t RoomForBlocks(const KvBudget& budget);

// Returns the number of blocks to allocate. RESOURCE_EXHAUSTED (reason OUT_OF_GPU_MEMORY) with the numbers and what to
// change, if one sequence of max_context tokens, or blocks_asked, do not fit. Pure.
absl::StatusOr<int64_t> BlocksThatFit(const KvBudget& budget);

}  // namespace syncopate::rollouter
