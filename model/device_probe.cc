#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <malloc.h>

#include <cstdint>
#include <cstdlib>

#include "model/device.h"

namespace syncopate::model {
namespace {

constexpr size_t kAlignment = 64;  // the alignment that libtorch uses

// The block's address is stored right before the tensor's numbers.
void*& GetBlock(void* numbers) { return static_cast<void**>(numbers)[-1]; }

void FreeTensor(void* numbers) {
  if (numbers != nullptr) std::free(GetBlock(numbers));
}

class PlainBlockAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const numbers = bytes == 0 ? nullptr : Allocate(bytes);
    return {numbers, numbers, &FreeTensor, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &FreeTensor; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void* Allocate(size_t bytes) {
    void* const block = bytes > SIZE_MAX - kAlignment ? nullptr : std::malloc(bytes + kAlignment);
    TORCH_CHECK(block != nullptr, "no memory for a tensor of ", bytes, " bytes");
    // A block begins at a multiple of 16, so its address fits before the next multiple of 64.
    void* const numbers =  // NOLINTNEXTLINE(performance-no-int-to-ptr): rounding an address up has no other spelling
        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(block) + kAlignment) & ~uintptr_t{kAlignment - 1});
    GetBlock(numbers) = block;
    return numbers;
  }
};

}  // namespace

void ReuseFreedTensors() {
  static PlainBlockAllocator allocator;
  c10::SetCPUAllocator(&allocator);
}

Hardware ProbeHardware() {
  Hardware hardware;
  hardware.built_with_cuda = c10::impl::hasDeviceGuardImpl(at::kCUDA);
  // NOLINTNEXTLINE(bugprone-signed-char-misuse): a count, which libtorch stores in eight bits
  if (hardware.built_with_cuda) hardware.gpus = c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount();
  return hardware;
}

MemoryUse ReadMemoryUse(const std::string& device) {
  if (!IsCuda(device)) {
    const struct mallinfo2 heap = mallinfo2();
    // Large blocks are mapped separately, outside the arenas.
    return {static_cast<int64_t>(heap.uordblks + heap.hblkhd), static_cast<int64_t>(heap.arena + heap.hblkhd), 0};
  }
  const auto stats = c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(at::Device(device).index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {stats.allocated_bytes[kAll].current, stats.reserved_bytes[kAll].current, stats.allocated_bytes[kAll].peak};
}

void ResetMemoryPeak(const std::string& device) {
  if (IsCuda(device)) c10::getDeviceAllocator(at::kCUDA)->resetPeakStats(at::Device(device).index());
}

void EmptyAllocator(const std::string& device) {
  if (IsCuda(device)) {
    c10::getDeviceAllocator(at::kCUDA)->emptyCache();
  } else {
    malloc_trim(0);
  }
}

}  // namespace syncopate::model
