#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "cuda/cuda_arena.h"
#include "cuda/stream.h"
#include "synchronizer/cuda/cuda_send_arena.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {

// Staging of one rank's shard on the GPU that the policy is on: one pass over the shard casts, packs and digests, on a
// stream of low priority, beside the step that follows. It reads the copy in which the policy computes if all tensors
// travel in its dtype, else the float32 weights. The next update is queued behind the read: no thread waits for it.
class CudaStager final : public WeightStager {
 public:
  // `policy` is borrowed, is this rank's own and computes on GPU `device`. `wire` has the tensors of
  // policy->manifest(), in order, in float32 or bfloat16. `lends_base` and `base`, in which the policy
  // computes (BaseMemory): CudaSendArena::Options. Errors of CudaSendArena::Create and PlanStaging.
  static absl::StatusOr<std::unique_ptr<CudaStager>> Create(PolicyTrainer* policy, Manifest wire, int device, int slots,
                                                            const StagedPart& part = {}, bool lends_base = false,
                                                            std::shared_ptr<const cuda::CudaArena> base = nullptr);
  ~CudaStager() override;
  // The dtype that a policy which computes in `compute` is read in.
  static DType ReadDType(DType compute, const Manifest& wire);

  const Manifest& manifest() const override { return manifest_; }
  // Reads the weights as they are when the work that is on the default stream now is done.
  absl::Status Launch(const PolicyVersion& version) override;
  absl::StatusOr<Staged> Await() override;
  double TakeWaitSeconds() override { return 0; }
  absl::StatusOr<bool> LeaveDevice() override { return arena_->LeaveDevice(); }
  synchronizer::WeightStore* store() override { return arena_.get(); }
  absl::StatusOr<synchronizer::SharedMemory> LendBase() override { return arena_->LendBase(); }
  std::string layout() const override { return layout_; }
  int64_t bytes() const override { return arena_->device_bytes() + arena_->scratch_bytes(); }

  // For transports between GPUs.
  synchronizer::CudaSendArena* arena() { return arena_.get(); }

 private:
  CudaStager(PolicyTrainer* policy, Manifest manifest, std::string layout, synchronizer::ShardBases bases,
             std::unique_ptr<synchronizer::CudaSendArena> arena, cuda::Stream stream, cuda::Event updated)
      : policy_(policy),
        manifest_(std::move(manifest)),
        layout_(std::move(layout)),
        bases_(std::move(bases)),
        stream_(std::move(stream)),
        updated_(std::move(updated)),
        arena_(std::move(arena)) {}

  PolicyTrainer* const policy_;
  const Manifest manifest_;
  const std::string layout_;
  const synchronizer::ShardBases bases_;  // of the shard
  const cuda::Stream stream_;
  const cuda::Event updated_;                                 // the last Launch reads what is there after it
  const std::unique_ptr<synchronizer::CudaSendArena> arena_;  // last: it waits for its work on the stream
};

}  // namespace syncopate::trainer
