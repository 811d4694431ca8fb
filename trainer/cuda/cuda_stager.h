#pragma once

#include <memory>

#include "absl/time/time.h"
#include "synchronizer/cuda/cuda_send_arena.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {

// Staging on the GPU that the policy is on: one pass over the parameters casts, packs and digests.
class CudaStager final : public WeightStager {
 public:
  // `policy` is borrowed and computes on GPU `device`. `wire` has the tensors of policy->manifest(), in order, in
  // float32 or bfloat16. Errors as CudaSendArena::Create.
  static absl::StatusOr<std::unique_ptr<CudaStager>> Create(const PolicyTrainer* policy, Manifest wire, int device,
                                                            int slots);

  const Manifest& manifest() const override { return manifest_; }
  // As CudaSendArena::Stage, after the work that the calling thread has queued on the default stream.
  absl::StatusOr<Staged> Stage(const PolicyVersion& version) override;
  synchronizer::WeightStore* store() override { return arena_.get(); }
  int64_t bytes() const override { return slots_ * arena_->send_bytes() + arena_->scratch_bytes(); }

  // For transports between GPUs.
  synchronizer::CudaSendArena* arena() { return arena_.get(); }
  const synchronizer::SyncPlan& plan() const { return plan_; }

 private:
  CudaStager(Manifest manifest, synchronizer::SyncPlan plan, synchronizer::ShardBases bases, int slots,
             std::unique_ptr<synchronizer::CudaSendArena> arena)
      : manifest_(std::move(manifest)),
        plan_(std::move(plan)),
        bases_(std::move(bases)),
        slots_(slots),
        arena_(std::move(arena)) {}

  const Manifest manifest_;
  const synchronizer::SyncPlan plan_;
  const synchronizer::ShardBases bases_;  // of the parameters
  const int slots_;
  const std::unique_ptr<synchronizer::CudaSendArena> arena_;
};

}  // namespace syncopate::trainer
