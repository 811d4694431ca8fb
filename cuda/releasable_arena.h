#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "cuda/cuda_arena.h"

namespace syncopate::cuda {

// GPU memory at an address that never changes, which can be given back for a time: what holds the address, a CUDA graph
// for instance, stays valid. Not thread-safe: one owner, who lets no work on it be under way during Release(), and none
// begin before Restore().
class ReleasableArena {
 public:
  // `bytes` of zeros. Blocks until they are there. Errors as GpuMemoryBlock::Create.
  static absl::StatusOr<std::unique_ptr<ReleasableArena>> Create(int64_t bytes, const CudaArena::Options& options);

  char* data() const { return range_.data(); }
  int64_t bytes() const { return bytes_; }                                // as asked for
  int64_t held_bytes() const { return block_.has_value() ? bytes_ : 0; }  // of them there is memory now

  // Gives the memory back to the GPU; what it held is lost. Nothing if that was done. INTERNAL reason CUDA_ERROR.
  absl::Status Release();
  // Takes memory again, of zeros, at the same address. Nothing if it is there. Errors as Create(); then there is none.
  absl::Status Restore();

 private:
  ReleasableArena(CudaArena::Options options, int64_t bytes, AddressRange range)
      : options_(std::move(options)), bytes_(bytes), range_(std::move(range)) {}

  const CudaArena::Options options_;
  const int64_t bytes_;
  AddressRange range_;
  std::optional<GpuMemoryBlock> block_;  // none: given back
};

}  // namespace syncopate::cuda
