#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "cuda/gpu_memory.h"
#include "synchronizer/cuda/cuda_shadow_check.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::synchronizer {

// Two weight sets on one GPU, at two addresses that never change: `live` serves tokens, `shadow` receives. Exchange()
// exchanges the physical memory behind them. So nothing is copied, and every pointer and every CUDA graph made for the
// live address stays valid and reads the new weights.
//
// Not thread-safe: one owner, which must ensure that no work on either range is in progress during Exchange().
class RemappableArenas {
 public:
  struct Options {
    int device = 0;
    int64_t chunk_bytes = 0;               // 0: one handle for each set; an exchange costs time per handle
    const cuda::Driver* driver = nullptr;  // see GpuMemoryBlock::Create; tests pass one that fails
    // True: Create() allocates the live set alone, and nothing else may be called before AddShadow().
    bool shadow_later = false;
  };

  // Allocates 2 x `bytes` of zeros. RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY, FAILED_PRECONDITION reason NO_GPU.
  static absl::StatusOr<std::unique_ptr<RemappableArenas>> Create(int64_t bytes, const Options& options);

  char* live() const { return live_.data(); }
  char* shadow() const { return shadow_.data(); }
  int64_t bytes() const { return bytes_; }
  int device() const { return options_.device; }
  bool released() const { return blocks_.empty(); }
  // The memory of a set as mapped: rounded up.
  int64_t mapped_bytes() const { return mapped_bytes_; }
  // The memory that does not serve. It may be mapped elsewhere while it is not at the shadow's address.
  const cuda::GpuMemoryBlock& spare() const { return blocks_[1 - live_block_]; }
  // Allocates the second set, of zeros, and maps it at the shadow's address. Errors as Create; then there is none.
  absl::Status AddShadow();
  // Id of the memory that is mapped at the shadow's address now.
  uint64_t shadow_id() const { return blocks_[1 - live_block_].id(); }
  // FAILED_PRECONDITION reason RELEASED.
  absl::StatusOr<cuda::ExportedMemory> ExportShadow() const;

  // Release() frees the memory of both sets on the GPU and keeps the addresses. The contents are lost, and no
  // other function may be called before Restore(), which allocates zeroed memory again. Each does nothing if it is done
  // already. Restore() has the errors of Create; after an error there is no memory. Memory that another process has
  // mapped is freed when that process unmaps it.
  absl::Status Release();
  absl::Status Restore();

  // Makes the shadow's memory serve at the live address. Until MapShadow() the shadow's address leads to the same
  // memory, which serves: nobody may write there. The memory that was live has no address meanwhile. Blocks for the
  // remap of one weight set (0.6 to 1.0 ms with one handle). An error restores the earlier state; if that fails too,
  // INTERNAL reason WEIGHTS_UNMAPPED, and this object may only be destroyed.
  absl::Status Exchange();
  // Maps the memory that does not serve at the shadow's address. Call after Exchange(), before the next write to the
  // shadow; work on the live weights goes on meanwhile. Does nothing if it is done already. FAILED_PRECONDITION reason
  // RELEASED, INTERNAL reason WEIGHTS_UNMAPPED; after another error it may be called again.
  absl::Status MapShadow();
  // The shadow's address has no memory until MapShadow(). Work on it must have ended.
  absl::Status UnmapShadow();

 private:
  RemappableArenas(const Options& options, int64_t bytes, std::vector<cuda::GpuMemoryBlock> blocks,
                   cuda::AddressRange live, cuda::AddressRange shadow)
      : options_(options),
        bytes_(bytes),
        blocks_(std::move(blocks)),
        live_(std::move(live)),
        shadow_(std::move(shadow)) {}
  // Allocates the memory of the live set, or of the shadow.
  static absl::StatusOr<cuda::GpuMemoryBlock> MakeBlock(int64_t bytes, const Options& options, bool of_shadow);
  absl::Status MapAndZero();
  // Maps blocks_[live] at the live address and the other block at the shadow's, whatever is mapped now.
  absl::Status MapAs(int live);
  absl::Status MapLive(int live);  // leaves the shadow's range as it is

  const Options options_;
  const int64_t bytes_;
  int64_t mapped_bytes_ = 0;
  std::vector<cuda::GpuMemoryBlock> blocks_;  // two; one before AddShadow(); empty while the memory is released
  cuda::AddressRange live_;
  cuda::AddressRange shadow_;
  int live_block_ = 0;
  int shadow_block_ = 1;  // of the shadow's range, if that is mapped
  bool broken_ = false;
};

// Runs `remap` when no work that touches the weights is in progress and none can begin: between two decode steps, after
// the stream has drained. Returns how long decode steps were kept from running. If no such moment comes within
// `deadline`, returns an error, and `remap` has not run and never will. An error of `remap` is returned.
using BetweenSteps =
    std::function<absl::StatusOr<absl::Duration>(const std::function<absl::Status()>& remap, absl::Duration deadline)>;

// The target of receivers whose decode loop is not an engine: benchmarks, tools, tests. Thread-safe, except that
// shadow() belongs to one receiver.
class CudaArenaPair final : public WeightTarget {
 public:
  struct Options {
    RemappableArenas::Options arenas;
    int max_check_blocks = 0;  // see CudaShadowChecker::Options::max_blocks
  };

  // Errors: see RemappableArenas::Create.
  static absl::StatusOr<std::unique_ptr<CudaArenaPair>> Create(int64_t bytes, BetweenSteps between_steps,
                                                               const Options& options);

  char* shadow() override;  // mapped, unless mapping failed: then BeginCheck returns the error
  char* live() const { return arenas_->live(); }
  int64_t bytes() const { return arenas_->bytes(); }
  PolicyVersion serving() const;
  uint64_t shadow_id() const;
  absl::StatusOr<cuda::ExportedMemory> ExportShadow() const;

  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                        absl::Duration deadline) override;
  // Maps the shadow outside of the install, because mapping takes as long as the rest of the pause.
  void RestoreShadow() override;
  absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override;
  absl::StatusOr<std::unique_ptr<ShadowCheck>> BeginCheck(ShadowContents contents) override;

 private:
  CudaArenaPair(std::unique_ptr<RemappableArenas> arenas, std::unique_ptr<CudaShadowChecker> checker,
                BetweenSteps between_steps)
      : arenas_(std::move(arenas)), checker_(std::move(checker)), between_steps_(std::move(between_steps)) {}

  // The addresses are constant; the memory behind them changes under `mutex_`.
  const std::unique_ptr<RemappableArenas> arenas_;
  const std::unique_ptr<CudaShadowChecker> checker_;
  const BetweenSteps between_steps_;
  mutable Mutex mutex_;
  PolicyVersion serving_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::synchronizer
