#include "trainer/step/device_memory.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>

namespace syncopate::trainer {

DeviceMemory ReadDeviceMemory(const std::string& device) {
  const at::Device place(device);
  if (place.is_cpu()) {
    const struct mallinfo2 heap = mallinfo2();  // large blocks are mapped by themselves, and counted apart
    return {static_cast<int64_t>(heap.uordblks + heap.hblkhd), static_cast<int64_t>(heap.arena + heap.hblkhd)};
  }
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(place.type());
  if (!allocator->initialized()) return {};
  const auto stats = allocator->getDeviceStats(place.has_index() ? place.index() : c10::DeviceIndex{0});
  return {stats.allocated_bytes[0].current, stats.reserved_bytes[0].current};
}

}  // namespace syncopate::trainer
