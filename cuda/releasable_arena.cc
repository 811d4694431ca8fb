#include "cuda/releasable_arena.h"

#include "base/status.h"
#include "cuda/device.h"

namespace syncopate::cuda {

absl::StatusOr<std::unique_ptr<ReleasableArena>> ReleasableArena::Create(int64_t bytes,
                                                                         const CudaArena::Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(GpuMemoryBlock block,
                             GpuMemoryBlock::Create(options.device, bytes, options.chunk_bytes, options.what));
  SYNCOPATE_ASSIGN_OR_RETURN(AddressRange range, AddressRange::Reserve(block.bytes()));
  SYNCOPATE_RETURN_IF_ERROR(range.Map(block, options.device));
  SYNCOPATE_RETURN_IF_ERROR(ZeroGpuMemory(options.device, range.data(), bytes));
  std::unique_ptr<ReleasableArena> arena(new ReleasableArena(options, bytes, std::move(range)));
  arena->block_ = std::move(block);
  return arena;
}

absl::Status ReleasableArena::Release() {
  const DeviceScope scope(options_.device);
  SYNCOPATE_RETURN_IF_ERROR(range_.Unmap());
  block_.reset();
  return absl::OkStatus();
}

absl::Status ReleasableArena::Restore() {
  if (block_.has_value()) return absl::OkStatus();
  const DeviceScope scope(options_.device);
  SYNCOPATE_ASSIGN_OR_RETURN(GpuMemoryBlock block,
                             GpuMemoryBlock::Create(options_.device, bytes_, options_.chunk_bytes, options_.what));
  SYNCOPATE_RETURN_IF_ERROR(range_.Map(block, options_.device));
  block_ = std::move(block);
  // Zeros, as after Create(): attention multiplies numbers beyond a sequence's end by zero, and they must not be NaN.
  return ZeroGpuMemory(options_.device, range_.data(), bytes_);
}

}  // namespace syncopate::cuda
