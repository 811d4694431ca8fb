#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace syncopate::synchronizer::ipc {

// Physical memory that other processes of this host can map.
struct MemoryInfo {
  uint64_t id = 0;              // drawn when the memory was made; no other memory has it, now or later
  std::string device;           // UUID of the GPU that holds it; "" for host memory
  std::vector<int64_t> chunks;  // bytes of its parts, in the order of their addresses

  int64_t bytes() const { return std::accumulate(chunks.begin(), chunks.end(), int64_t{0}); }
  friend bool operator==(const MemoryInfo&, const MemoryInfo&) = default;
};

// The same with what lets another process map it. Holding the descriptors keeps the memory allocated.
struct LentMemory {
  MemoryInfo info;
  std::vector<FileDescriptor> handles;  // one for each of info.chunks
};

using SharedMemory = std::shared_ptr<const LentMemory>;

}  // namespace syncopate::synchronizer::ipc
