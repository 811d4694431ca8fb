#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cuda/gpu_memory.h"

namespace syncopate::cuda {

// GPU memory at a fixed address: a send arena, or another process's arena mapped here. Immutable except for its bytes,
// so thread-safe.
class CudaArena {
 public:
  struct Options {
    int device = 0;
    int64_t chunk_bytes = 0;         // 0: one handle, which maps and remaps fastest
    std::string what = "the arena";  // for errors
  };

  // Allocates `bytes` of zeros on options.device. Blocks until they are written. Errors as GpuMemoryBlock::Create.
  static absl::StatusOr<std::unique_ptr<CudaArena>> Create(int64_t bytes, const Options& options);
  // `bytes` of which the first ones are the memory of `base`: what is written to it is read in all arenas that begin with
  // it. The rest is memory of its own, of zeros. `base` has a multiple of 2 MiB in bytes, and less than `bytes`. Export()
  // exports both.
  static absl::StatusOr<std::unique_ptr<CudaArena>> CreateBehind(std::shared_ptr<const CudaArena> base, int64_t bytes,
                                                                 const Options& options);
  // Maps memory that some process exported, readable and writable by `device`. NO_PEER_ACCESS if that GPU cannot reach
  // it, BAD_MEMORY_EXPORT.
  static absl::StatusOr<std::unique_ptr<CudaArena>> Import(const ExportedMemory& exported, int device);

  char* data() const { return range_.data(); }
  int64_t bytes() const { return bytes_; }     // as requested; if imported, as mapped, which may be more
  int device() const { return device_; }       // the GPU whose kernels and copies may use data()
  uint64_t id() const { return block_.id(); }  // of the memory of its own
  absl::StatusOr<ExportedMemory> Export() const;

 private:
  CudaArena(GpuMemoryBlock block, AddressRange range, int device, int64_t bytes,
            std::shared_ptr<const CudaArena> base = nullptr)
      : base_(std::move(base)), block_(std::move(block)), range_(std::move(range)), device_(device), bytes_(bytes) {}

  const std::shared_ptr<const CudaArena> base_;  // null: all memory is its own
  GpuMemoryBlock block_;
  AddressRange range_;
  const int device_;
  const int64_t bytes_;
};

// Sets `bytes` at `data` to zero. Blocks until that is done.
absl::Status ZeroGpuMemory(int device, char* data, int64_t bytes);

}  // namespace syncopate::cuda
