#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "cuda/gpu_memory.h"
#include "synchronizer/lent_memory.h"

namespace syncopate::synchronizer {

// GPU memory of several address ranges [base | rest] that never move, so that CUDA graphs stay valid. The base of all
// ranges is the same memory: what is written to one range is read in all. The rest of each range has memory of its own.
// SharedBaseMemory is its like for host memory.
//
// The base is this process's own memory, or memory that a trainer lends it, or not there. With Options::maps it begins as
// a stand-in: a small block of zeros that is mapped again and again over the whole base, so that kernels can be tried
// before there is a base, and without its memory.
//
//   own, stand-in, none --Map()--> lent by another process, to this one alone --Own()--> own, zeros
//   own, stand-in, lent --Release()--> none --Own()--> own, zeros
//
// Memory that is lent may be written where the lender leaves rows free. The loan goes back when it is unmapped. Memory
// that another process lends stays there when that process ends, until this one unmaps it. Not thread-safe, except
// own_bytes() and mapped_bytes(): no work on the ranges may be under way in a call.
class CudaSharedBase {
 public:
  struct Options {
    int device = 0;
    int32_t ranges = 1;
    int64_t base_bytes = 0;  // a multiple of 2 MiB
    int64_t rest_bytes = 0;  // of each range
    bool maps = false;       // the base gets memory of its own by Own() alone, at first and after each Restore()
    // The least memory of the stand-in, if the base has as much: more than a GPU's cache, from which kernels that are
    // timed would read it.
    int64_t stand_in_bytes = 128 << 20;
  };
  // All memory is zeros. RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY, FAILED_PRECONDITION reason NO_GPU.
  static absl::StatusOr<std::unique_ptr<CudaSharedBase>> Create(const Options& options);

  char* range(int32_t index) const { return ranges_[static_cast<size_t>(index)].data(); }
  // Whether the base has memory that is as large as it is: its own, or lent.
  bool has_base() const { return base_ == Base::kOwn || base_ == Base::kLent; }
  bool owns_base() const { return base_ == Base::kOwn; }
  // Memory of this process's own: the base once, or its stand-in, and the rest of all ranges.
  int64_t own_bytes() const { return own_bytes_; }
  // Memory of the base that another process lends.
  int64_t mapped_bytes() const { return base_ == Base::kLent ? options_.base_bytes : 0; }

  // Gives memory back to the GPU: all that is this process's own, and, unless `keep_lent`, what is lent. INTERNAL reason
  // CUDA_ERROR. Does nothing if it is done.
  absl::Status Release(bool keep_lent);
  // Allocates the rest of all ranges again, of zeros; and the base, if it has no memory and `own_base`, or without
  // Options::maps. Does nothing if it is done. Errors of Create(); then nothing has changed.
  absl::Status Restore(bool own_base);
  // Makes `memory` the base of all ranges and gives back this process's own. FAILED_PRECONDITION reason BASE_UNMAPPABLE,
  // with nothing changed, if it is not of this GPU and of the base's size. INVALID_ARGUMENT reason BAD_MEMORY_EXPORT,
  // INTERNAL reason CUDA_ERROR: there may be no base then.
  absl::Status Map(LentMemory memory);
  // Makes sure that the base is memory of this process's own. Errors of Create(); there is no base then.
  absl::Status Own();

 private:
  enum class Base : uint8_t { kNone, kStandIn, kOwn, kLent };
  // Part of the memory of the base: a block, `times` times over.
  struct Piece {
    const cuda::GpuMemoryBlock* block = nullptr;
    int64_t times = 1;
  };

  CudaSharedBase(const Options& options, std::string gpu) : options_(options), gpu_(std::move(gpu)) {}
  absl::Status UnmapBase();
  // The mappings keep the memory of the blocks.
  absl::Status MapBase(const std::vector<Piece>& pieces, Base state);
  absl::Status MapStandIn();
  absl::Status RestoreRests();
  void CountOwnBytes();

  const Options options_;
  const std::string gpu_;  // its UUID
  FileDescriptor loan_;    // LentMemory::loan of what is mapped; destroyed after the mappings
  std::vector<cuda::AddressRange> ranges_;
  std::vector<cuda::AddressRange> bases_, rests_;  // parts of ranges_
  int64_t stand_in_bytes_ = 0;
  bool has_rests_ = false;
  std::atomic<Base> base_ = Base::kNone;
  std::atomic<int64_t> own_bytes_ = 0;
};

}  // namespace syncopate::synchronizer
