#include "bench/cuda/in_place_arena.h"

#include <utility>

#include "base/status.h"

namespace syncopate::bench {

absl::StatusOr<std::unique_ptr<InPlaceArena>> InPlaceArena::Create(int64_t bytes, Generation generation,
                                                                   const Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(
      std::unique_ptr<cuda::CudaArena> arena,
      cuda::CudaArena::Create(bytes, {options.device, options.chunk_bytes, "the weights' only arena"}));
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<synchronizer::CudaShadowChecker> checker,
                             synchronizer::CudaShadowChecker::Create({options.device, options.max_check_blocks}));
  return std::unique_ptr<InPlaceArena>(
      new InPlaceArena(std::move(arena), std::move(checker), std::move(generation), options.clock));
}

PolicyVersion InPlaceArena::serving() const {
  MutexLock lock(&mutex_);
  return serving_;
}

absl::Status InPlaceArena::BeginInPlace(const PolicyVersion&, absl::Duration deadline) {
  {
    MutexLock lock(&mutex_);
    if (paused_) return absl::OkStatus();  // paused since a failed transfer
  }
  const absl::Time begun = clock_->Now();
  SYNCOPATE_RETURN_IF_ERROR(generation_.pause(deadline));
  MutexLock lock(&mutex_);
  paused_ = true;
  paused_since_ = begun;
  served_ = std::exchange(serving_, PolicyVersion());
  return absl::OkStatus();
}

void InPlaceArena::CancelInPlace() {
  {
    MutexLock lock(&mutex_);
    if (!paused_ || served_.IsNone()) return;  // no valid weights to serve
    paused_ = false;
    serving_ = served_;
  }
  generation_.resume();
}

void InPlaceArena::Invalidate() {
  MutexLock lock(&mutex_);
  serving_ = served_ = PolicyVersion();
}

absl::StatusOr<synchronizer::InstallResult> InPlaceArena::Install(const PolicyVersion& version, uint64_t,
                                                                  absl::Duration) {
  absl::Time since;
  {
    MutexLock lock(&mutex_);
    if (!paused_) {
      return Error(absl::StatusCode::kFailedPrecondition, "NOT_IN_PLACE", "no transfer into these weights has begun");
    }
    serving_ = version;
    paused_ = false;
    since = paused_since_;
  }
  generation_.resume();
  return synchronizer::InstallResult{absl::ToDoubleSeconds(clock_->Now() - since)};
}

absl::StatusOr<synchronizer::InstallResult> InPlaceArena::Relabel(const PolicyVersion& version, absl::Duration) {
  MutexLock lock(&mutex_);
  serving_ = version;
  return synchronizer::InstallResult();
}

absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> InPlaceArena::BeginCheck(
    synchronizer::ShadowContents contents) {
  return checker_->Begin(arena_->data(), std::move(contents));
}

}  // namespace syncopate::bench
