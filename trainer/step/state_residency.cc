#include "trainer/step/state_residency.h"

#include <utility>

#include "base/log.h"
#include "model/device.h"

// Parameters, moments, gradients and the reference each have a place in device and in host memory, and are in one of
// them. Uses may lie within each other, so they are counted: what leaves does so when the last one ends.
namespace syncopate::trainer {

absl::Status StateResidency::Begin() {
  if (options_.offload_reference) SYNCOPATE_RETURN_IF_ERROR(OffloadReference());
  if (options_.offload_params) SYNCOPATE_RETURN_IF_ERROR(actor_.parameter_state().Offload());
  // What loading used is no sign of what steps need.
  model::ResetMemoryPeak(device_);
  // Moves made while loading are not counted in any step.
  TakeMoves();
  return absl::OkStatus();
}

absl::Status StateResidency::BeginUse() {
  // Load() does nothing for what is there.
  if (uses_ == 0) SYNCOPATE_RETURN_IF_ERROR(actor_.parameter_state().Load());
  ++uses_;
  return absl::OkStatus();
}

absl::Status StateResidency::EndUse() {
  if (--uses_ > 0) return absl::OkStatus();
  absl::Status status;
  if (options_.offload_params || rollout_mode_) status = actor_.parameter_state().Offload();
  if (rollout_mode_) status.Update(actor_.optimizer_state().Offload());
  // Only here is it known what a step left behind.
  if (std::exchange(stepped_, false)) LookAtCache();
  return status;
}

absl::StatusOr<StateMoves> StateResidency::EnterRolloutMode() {
  if (rollout_mode_) return StateMoves();
  const StateMoves before = AllMoves();
  absl::Status status = actor_.parameter_state().Offload();
  if (status.ok()) status = actor_.optimizer_state().Offload();
  if (status.ok()) status = actor_.gradient_state().Offload();
  if (status.ok()) status = OffloadReference();
  if (!status.ok()) {
    // All or nothing: half of the state on the device is neither mode.
    const absl::Status back = LoadAll();
    if (!back.ok()) SYNCOPATE_LOG(kError, "what had left the device does not come back: %s", back.ToString());
    return status;
  }
  rollout_mode_ = true;
  // The rollouter on the same GPU allocates with another allocator, to which a cache is memory in use.
  EmptyCacheNow();
  return Since(before);
}

absl::StatusOr<StateMoves> StateResidency::EnterTrainerMode() {
  if (!rollout_mode_) return StateMoves();
  const StateMoves before = AllMoves();
  SYNCOPATE_RETURN_IF_ERROR(LoadAll());
  rollout_mode_ = false;
  return Since(before);
}

// What is on the device in trainer mode, between two uses.
absl::Status StateResidency::LoadAll() {
  SYNCOPATE_RETURN_IF_ERROR(actor_.gradient_state().Load());
  SYNCOPATE_RETURN_IF_ERROR(actor_.optimizer_state().Load());
  if (reference_ != nullptr && !options_.offload_reference) SYNCOPATE_RETURN_IF_ERROR(reference_->state().Load());
  return options_.offload_params ? absl::OkStatus() : actor_.parameter_state().Load();
}

absl::Status StateResidency::BeginStep() {
  if (rollout_mode_) {
    return Error(absl::StatusCode::kFailedPrecondition, "ROLLOUT_MODE",
                 "the trainer is in rollout mode: its state is in host memory; TrainerMode brings it back");
  }
  stepped_ = true;
  return absl::OkStatus();
}

absl::Status StateResidency::BeginPass() {
  // Passes for log-probs come first in a step and need no moments; the first of them makes room for all.
  if (!options_.offload_optimizer_for_logprob || passed_) return absl::OkStatus();
  passed_ = true;
  return actor_.optimizer_state().Offload();
}

void StateResidency::BeginMicroBatch() {
  // The C library's allocator does not say what was in use at most, so there is no pressure to see.
  if (!model::IsCuda(device_)) return;
  const model::MemoryUse use = model::ReadMemoryUse(device_);
  if (rule_.ShouldEmptyBefore(use.reserved_bytes, use.allocated_bytes, use.peak_bytes)) EmptyCacheNow();
}

absl::Status StateResidency::BeginReference() {
  return reference_ == nullptr ? absl::OkStatus() : reference_->state().Load();
}

absl::Status StateResidency::EndReference() {
  return options_.offload_reference ? OffloadReference() : absl::OkStatus();
}

absl::Status StateResidency::EndReferencePass() {
  SYNCOPATE_RETURN_IF_ERROR(EndReference());
  LookAtCache();
  return absl::OkStatus();
}

absl::Status StateResidency::EndStep() {
  passed_ = false;
  // Both, whatever comes of the first.
  const absl::Status reference = EndReference();
  const absl::Status optimizer = NeedOptimizer();
  return reference.ok() ? optimizer : reference;
}

absl::Status StateResidency::OffloadReference() {
  return reference_ == nullptr ? absl::OkStatus() : reference_->state().Offload();
}

void StateResidency::LookAtCache() {
  const model::MemoryUse use = model::ReadMemoryUse(device_);
  if (rule_.ShouldEmpty(use.reserved_bytes, use.peak_bytes)) EmptyCacheNow();
}

void StateResidency::EmptyCacheNow() {
  model::EmptyAllocator(device_);
  ++cache_flushes_;
}

StateMoves StateResidency::AllMoves() const {
  StateMoves all = actor_.parameter_state().moves();
  all += actor_.optimizer_state().moves();
  all += actor_.gradient_state().moves();
  if (reference_ != nullptr) all += reference_->state().moves();
  return all;
}

StateMoves StateResidency::Since(const StateMoves& before) const {
  const StateMoves now = AllMoves();
  return {now.load_seconds - before.load_seconds, now.offload_seconds - before.offload_seconds,
          now.bytes - before.bytes};
}

PolicyMemory StateResidency::memory() const {
  const model::MemoryUse use = model::ReadMemoryUse(device_);
  PolicyMemory memory;
  memory.parameter_bytes = actor_.parameter_state().device_bytes();
  memory.optimizer_bytes = actor_.optimizer_state().device_bytes();
  memory.gradient_bytes = actor_.gradient_state().device_bytes();
  memory.reference_bytes = reference_ == nullptr ? 0 : reference_->state().device_bytes();
  memory.update_bytes =
      actor_.parameter_state().bytes() + actor_.optimizer_state().bytes() + actor_.gradient_state().bytes();
  if (reference_ != nullptr && !options_.offload_reference) memory.update_bytes += reference_->state().bytes();
  // Arenas of the state are beside the allocator.
  const int64_t arenas =
      actor_.arena_bytes_on_device() + (reference_ == nullptr ? 0 : reference_->arena_bytes_on_device());
  memory.allocated_bytes = use.allocated_bytes + arenas;
  memory.reserved_bytes = use.reserved_bytes + arenas;
  return memory;
}

PolicyMoves StateResidency::TakeMoves() {
  PolicyMoves moves;
  moves.parameters = actor_.parameter_state().TakeMoves();
  moves.optimizer = actor_.optimizer_state().TakeMoves();
  actor_.gradient_state().TakeMoves();
  if (reference_ != nullptr) moves.reference = reference_->state().TakeMoves();
  moves.cache_flushes = std::exchange(cache_flushes_, 0);
  return moves;
}

}  // namespace syncopate::trainer
