#include "cuda/lending_arena.h"

#include "base/status.h"
#include "cuda/device.h"

namespace syncopate::cuda {

absl::StatusOr<std::unique_ptr<LendingArena>> LendingArena::Create(int64_t bytes, const Borrowed& borrowed,
                                                                   const CudaArena::Options& options) {
  SYNCOPATE_CHECK(borrowed.offset + borrowed.bytes <= bytes);
  SYNCOPATE_ASSIGN_OR_RETURN(AddressRange whole, AddressRange::Reserve(bytes));
  std::unique_ptr<LendingArena> arena(new LendingArena(bytes, options, std::move(whole)));
  arena->borrowed_bytes_ = borrowed.bytes;
  const int64_t before = borrowed.bytes > 0 ? borrowed.offset : bytes, behind = bytes - before - borrowed.bytes;
  if (before > 0) arena->own_.push_back({arena->whole_.Part(0, before), before, {}});
  if (borrowed.bytes > 0) arena->borrowed_.push_back(arena->whole_.Part(before, borrowed.bytes));
  if (behind > 0) arena->own_.push_back({arena->whole_.Part(before + borrowed.bytes, behind), behind, {}});
  SYNCOPATE_RETURN_IF_ERROR(arena->Restore());
  return arena;
}

int64_t LendingArena::allocated_bytes() const {
  int64_t allocated = 0;
  for (const Own& own : own_) allocated += own.block.empty() ? 0 : own.bytes;
  for (const AddressRange& range : borrowed_) allocated += range.mapped() ? borrowed_bytes_ : 0;
  return allocated;
}

absl::Status LendingArena::MapBorrowed(const GpuMemoryBlock& block) {
  SYNCOPATE_CHECK(!borrowed_.empty() && block.bytes() == borrowed_bytes_);
  if (borrowed_.front().mapped()) return absl::OkStatus();
  const DeviceScope scope(options_.device);
  return borrowed_.front().Map(block, options_.device);
}

absl::Status LendingArena::UnmapBorrowed() {
  const DeviceScope scope(options_.device);
  for (AddressRange& range : borrowed_) SYNCOPATE_RETURN_IF_ERROR(range.Unmap());
  return absl::OkStatus();
}

absl::Status LendingArena::Release() {
  SYNCOPATE_RETURN_IF_ERROR(UnmapBorrowed());
  const DeviceScope scope(options_.device);
  for (Own& own : own_) {
    SYNCOPATE_RETURN_IF_ERROR(own.range.Unmap());
    own.block.clear();
  }
  return absl::OkStatus();
}

absl::Status LendingArena::Restore() {
  for (Own& own : own_) {
    const absl::Status allocated = Allocate(own);
    if (allocated.ok()) continue;
    Release().IgnoreError();  // `allocated` has the error
    return allocated;
  }
  return absl::OkStatus();
}

absl::Status LendingArena::Allocate(Own& own) {
  if (!own.block.empty()) return absl::OkStatus();
  const DeviceScope scope(options_.device);
  SYNCOPATE_ASSIGN_OR_RETURN(GpuMemoryBlock block,
                             GpuMemoryBlock::Create(options_.device, own.bytes, options_.chunk_bytes, options_.what));
  SYNCOPATE_RETURN_IF_ERROR(own.range.Map(block, options_.device));
  own.block.push_back(std::move(block));
  // Zeros: attention multiplies numbers beyond a sequence's end by zero, and they must not be NaN.
  return ZeroGpuMemory(options_.device, own.range.data(), own.bytes);
}

}  // namespace syncopate::cuda
