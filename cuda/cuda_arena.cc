#include "cuda/cuda_arena.h"

#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/stream.h"

namespace syncopate::cuda {

absl::StatusOr<std::unique_ptr<CudaArena>> CudaArena::Create(int64_t bytes, const Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(GpuMemoryBlock block,
                             GpuMemoryBlock::Create(options.device, bytes, options.chunk_bytes, options.what));
  SYNCOPATE_ASSIGN_OR_RETURN(AddressRange range, AddressRange::Reserve(block.bytes()));
  SYNCOPATE_RETURN_IF_ERROR(range.Map(block, options.device));
  // No weight sync writes the padding between tensors, but digests cover it: it must be zeros on both sides.
  SYNCOPATE_RETURN_IF_ERROR(ZeroGpuMemory(options.device, range.data(), bytes));
  return std::unique_ptr<CudaArena>(new CudaArena(std::move(block), std::move(range), options.device, bytes));
}

absl::StatusOr<std::unique_ptr<CudaArena>> CudaArena::Import(const ExportedMemory& exported, int device) {
  SYNCOPATE_RETURN_IF_ERROR(CheckGpu(device));
  DeviceScope scope(device);
  SYNCOPATE_ASSIGN_OR_RETURN(GpuMemoryBlock block, GpuMemoryBlock::Import(exported));
  SYNCOPATE_ASSIGN_OR_RETURN(AddressRange range, AddressRange::Reserve(block.bytes()));
  SYNCOPATE_RETURN_IF_ERROR(range.Map(block, device));
  const int64_t bytes = block.bytes();
  return std::unique_ptr<CudaArena>(new CudaArena(std::move(block), std::move(range), device, bytes));
}

absl::Status ZeroGpuMemory(int device, char* data, int64_t bytes) {
  constexpr absl::Duration kDeadline = absl::Seconds(30);  // 100 GB take a tenth of a second
  DeviceScope scope(device);
  SYNCOPATE_ASSIGN_OR_RETURN(Stream stream, Stream::Create(device));
  SYNCOPATE_ASSIGN_OR_RETURN(Event done, Event::Create(device));
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream.get()), "zeroing GPU memory"));
  SYNCOPATE_RETURN_IF_ERROR(done.Record(stream.get()));
  return done.Wait(kDeadline, "zeroing GPU memory");
}

}  // namespace syncopate::cuda
