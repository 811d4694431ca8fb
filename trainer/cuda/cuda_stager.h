#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "cuda/stream.h"
#include "synchronizer/cuda/cuda_send_arena.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {

// Staging on the GPU that the policy is on: one pass over the parameters casts, packs and digests. With several ranks it
// is rank 0's, on whose GPU the parameters are gathered for it, into memory of their own: in the dtype that they travel
// in if that is what the policy computes in, else in float32.
class CudaStager final : public WeightStager {
 public:
  // `policy` is borrowed and computes on GPU `device`; with several ranks `leading`, borrowed, is what reaches the others,
  // else null. `wire` has the tensors of policy->manifest(), in order, in
  // float32 or bfloat16. `destination`: the layout of the receivers; "": each has everything. Errors as
  // CudaSendArena::Create.
  static absl::StatusOr<std::unique_ptr<CudaStager>> Create(const PolicyTrainer* policy, const Policy* leading,
                                                            Manifest wire, int device, int slots,
                                                            const std::string& destination = "");

  const Manifest& manifest() const override { return manifest_; }
  // See CudaSendArena::Stage; begins after the work that the calling thread has queued on the default stream. With
  // several ranks the errors of Policy::CopyParameters too.
  absl::StatusOr<Staged> Stage(const PolicyVersion& version) override;
  synchronizer::WeightStore* store() override { return arena_.get(); }
  int64_t bytes() const override { return slots_ * arena_->send_bytes() + arena_->scratch_bytes() + gathered_.bytes(); }

  // Named where receivers have parts: what is sent to each lies in an order that depends on it.
  std::string layout() const override { return layout_; }

  // For transports between GPUs.
  synchronizer::CudaSendArena* arena() { return arena_.get(); }
  const synchronizer::SyncPlan& plan() const { return plan_; }

 private:
  CudaStager(const Policy* leading, DType gathered_dtype, cuda::DeviceBuffer gathered, Manifest manifest,
             synchronizer::SyncPlan plan, synchronizer::ShardBases bases, int slots,
             std::unique_ptr<synchronizer::CudaSendArena> arena)
      : leading_(leading),
        gathered_dtype_(gathered_dtype),
        gathered_(std::move(gathered)),
        manifest_(std::move(manifest)),
        plan_(std::move(plan)),
        bases_(std::move(bases)),
        slots_(slots),
        arena_(std::move(arena)) {}

  const Policy* const leading_;  // null with one rank
  const DType gathered_dtype_;
  const cuda::DeviceBuffer gathered_;  // of all ranks; empty with one
  const Manifest manifest_;
  const synchronizer::SyncPlan plan_;
  const synchronizer::ShardBases bases_;  // of the parameters
  const int slots_;
  const std::unique_ptr<synchronizer::CudaSendArena> arena_;
  std::string layout_;
};

}  // namespace syncopate::trainer
