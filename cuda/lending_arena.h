#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/cuda_arena.h"

namespace syncopate::cuda {

// GPU memory at an address that never changes; all of it can be given back for a time, as a ReleasableArena's, and one
// range of it belongs to somebody else, who lends it. Users of the address, such as a CUDA graph, stay valid. Not
// thread-safe: the one owner must end all work on memory before it is released or taken back.
class LendingArena {
 public:
  // The range of the borrowed memory: offset and bytes are multiples of 2 MiB. 0 bytes: all memory is the arena's.
  struct Borrowed {
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  // Allocates `bytes` of zeros, less borrowed.bytes, which have no memory before MapBorrowed(). Blocks until they are
  // written. Errors as GpuMemoryBlock::Create.
  static absl::StatusOr<std::unique_ptr<LendingArena>> Create(int64_t bytes, const Borrowed& borrowed,
                                                              const CudaArena::Options& options);

  char* data() const { return whole_.data(); }
  int64_t bytes() const { return bytes_; }  // as requested
  // What is mapped now, borrowed memory counted.
  int64_t allocated_bytes() const;

  // Maps `block`, of borrowed.bytes, at the borrowed range; the owner may destroy it only when it is unmapped.
  // Repeated calls do nothing. INTERNAL reason CUDA_ERROR.
  absl::Status MapBorrowed(const GpuMemoryBlock& block);
  // The range has no memory any more. Blocks for the unmapping of one block; work on the rest may go on.
  absl::Status UnmapBorrowed();

  // Gives all memory back; contents are lost. Does nothing if it is given back. INTERNAL reason CUDA_ERROR.
  absl::Status Release();
  // Allocates memory at the same address again, and sets it to zero; blocks. The borrowed range has none before
  // MapBorrowed(). Does nothing if there is memory. Errors as Create(); after an error there is none.
  absl::Status Restore();

 private:
  // A range with memory of its own.
  struct Own {
    AddressRange range;
    int64_t bytes = 0;
    std::vector<GpuMemoryBlock> block;  // one, or none while it is given back
  };
  LendingArena(int64_t bytes, const CudaArena::Options& options, AddressRange whole)
      : bytes_(bytes), options_(options), whole_(std::move(whole)) {}
  absl::Status Allocate(Own& own);

  const int64_t bytes_;
  const CudaArena::Options options_;
  AddressRange whole_;  // the reservation; the others are ranges of it
  std::vector<Own> own_;
  std::vector<AddressRange> borrowed_;  // one, or none
  int64_t borrowed_bytes_ = 0;
};

}  // namespace syncopate::cuda
