#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "cuda/cuda_arena.h"

namespace syncopate::cuda {

// GPU memory at an address that never changes; the memory can be given back for a time. Users of the address, such as a
// CUDA graph, stay valid. Not thread-safe: the one owner must end all work on the memory before Release(), and start
// none before Restore().
class ReleasableArena {
 public:
  // Allocates `bytes` of zeros. Blocks until they are written. Errors as GpuMemoryBlock::Create.
  static absl::StatusOr<std::unique_ptr<ReleasableArena>> Create(int64_t bytes, const CudaArena::Options& options);

  char* data() const { return range_.data(); }
  int64_t bytes() const { return bytes_; }                                     // as requested
  int64_t allocated_bytes() const { return block_.has_value() ? bytes_ : 0; }  // 0 while the memory is given back

  // Gives the memory back to the GPU; its contents are lost. Does nothing if it is given back. INTERNAL reason
  // CUDA_ERROR.
  absl::Status Release();
  // Allocates memory at the same address again, and sets it to zero; blocks. Does nothing if there is memory. Errors as
  // Create(); if the memory could not be taken or mapped, there is none.
  absl::Status Restore();

 private:
  ReleasableArena(CudaArena::Options options, int64_t bytes, AddressRange range)
      : options_(std::move(options)), bytes_(bytes), range_(std::move(range)) {}

  const CudaArena::Options options_;
  const int64_t bytes_;
  AddressRange range_;
  std::optional<GpuMemoryBlock> block_;  // nullopt: given back
};

}  // namespace syncopate::cuda
