#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace syncopate::synchronizer {

// Physical memory that other processes of this host can map.
struct MemoryInfo {
  uint64_t id = 0;              // random; chosen when the memory was made; never used for other memory
  std::string device;           // UUID of its GPU; "" for host memory
  std::vector<int64_t> chunks;  // bytes of each part, in address order

  int64_t bytes() const { return std::accumulate(chunks.begin(), chunks.end(), int64_t{0}); }
  friend bool operator==(const MemoryInfo&, const MemoryInfo&) = default;
};

// MemoryInfo with the descriptors by which another process maps the memory. The descriptors keep the memory allocated.
struct LentMemory {
  MemoryInfo info;
  std::vector<FileDescriptor> handles;  // one for each of info.chunks
  // The connection to the lender, of memory that is lent to one process at a time: the loan lasts until it is closed, so
  // it stays open as long as the memory is mapped. Else invalid, or of no matter.
  FileDescriptor loan = {};
};

using SharedMemory = std::shared_ptr<const LentMemory>;

}  // namespace syncopate::synchronizer
