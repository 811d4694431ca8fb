#include "cuda/cuda_arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

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

absl::StatusOr<std::unique_ptr<CudaArena>> CudaArena::CreateBehind(std::shared_ptr<const CudaArena> base, int64_t bytes,
                                                                   const Options& options) {
  const int64_t begin = base->bytes();
  SYNCOPATE_CHECK(base->block_.bytes() == begin && begin < bytes);
  SYNCOPATE_ASSIGN_OR_RETURN(GpuMemoryBlock block,
                             GpuMemoryBlock::Create(options.device, bytes - begin, options.chunk_bytes, options.what));
  SYNCOPATE_ASSIGN_OR_RETURN(AddressRange range, AddressRange::Reserve(begin + block.bytes()));
  SYNCOPATE_RETURN_IF_ERROR(range.Map(base->block_, options.device));
  SYNCOPATE_RETURN_IF_ERROR(range.MapBehind(block, options.device));
  SYNCOPATE_RETURN_IF_ERROR(ZeroGpuMemory(options.device, range.data() + begin, bytes - begin));
  return std::unique_ptr<CudaArena>(
      new CudaArena(std::move(block), std::move(range), options.device, bytes, std::move(base)));
}

absl::StatusOr<ExportedMemory> CudaArena::Export() const {
  SYNCOPATE_ASSIGN_OR_RETURN(ExportedMemory own, block_.Export());
  if (base_ == nullptr) return own;
  SYNCOPATE_ASSIGN_OR_RETURN(ExportedMemory all, base_->block_.Export());
  all.id = own.id;
  all.chunks.insert(all.chunks.end(), own.chunks.begin(), own.chunks.end());
  std::move(own.fds.begin(), own.fds.end(), std::back_inserter(all.fds));
  return all;
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
