#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "cuda/cuda_arena.h"
#include "synchronizer/cuda/cuda_shadow_check.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::bench {

// One weight set, for models that fill the GPU: the serving weights are the receiving ones. So generation stops from
// the first byte of a transfer until the install, and after a failed transfer until the next successful one. The target
// of receivers whose decode loop is not an engine. Thread-safe, except that shadow() belongs to one receiver.
class InPlaceArena final : public synchronizer::WeightTarget {
 public:
  struct Options {
    int device = 0;
    int64_t chunk_bytes = 0;
    int max_check_blocks = 0;  // CudaShadowChecker::Options::max_blocks
    const Clock* clock = Clock::Real();
  };

  // The decode loop. The receiver's thread calls both functions, without a lock.
  struct Generation {
    // Blocks until no decode step runs and none will begin before resume(). After an error generation goes on.
    std::function<absl::Status(absl::Duration deadline)> pause;
    std::function<void()> resume;
  };

  // Allocates `bytes` of zeros. RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY, FAILED_PRECONDITION reason NO_GPU.
  static absl::StatusOr<std::unique_ptr<InPlaceArena>> Create(int64_t bytes, Generation generation,
                                                              const Options& options);

  char* shadow() override { return arena_->data(); }
  char* live() const { return arena_->data(); }
  // None during a transfer and after a failed one: the weights are invalid then.
  PolicyVersion serving() const;

  bool in_place() const override { return true; }
  absl::Status BeginInPlace(const PolicyVersion& version, absl::Duration deadline) override;
  void CancelInPlace() override;
  void Invalidate() override;
  absl::StatusOr<synchronizer::InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                                      absl::Duration deadline) override;
  absl::StatusOr<synchronizer::InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override;
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(synchronizer::ShadowContents contents) override;

 private:
  InPlaceArena(std::unique_ptr<cuda::CudaArena> arena, std::unique_ptr<synchronizer::CudaShadowChecker> checker,
               Generation generation, const Clock* clock)
      : arena_(std::move(arena)), checker_(std::move(checker)), generation_(std::move(generation)), clock_(clock) {}

  const std::unique_ptr<cuda::CudaArena> arena_;
  const std::unique_ptr<synchronizer::CudaShadowChecker> checker_;
  const Generation generation_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  PolicyVersion serving_ ABSL_GUARDED_BY(mutex_);
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time paused_since_ ABSL_GUARDED_BY(mutex_);
  PolicyVersion served_ ABSL_GUARDED_BY(mutex_);  // the version served before the pause
};

}  // namespace syncopate::bench
