#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "synchronizer/plan/pack.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// Staging of one rank's shard in host memory, for policies on any device: what the transports "inproc" and "grpc" send.
// Await makes the copy, one pass over the shard, then checks and digests it; of a model with adapters the base is copied
// once to each slot and digested once, and later versions are a pass over the adapters. A policy that comes to change its weights
// first makes the copy itself, or waits for the thread that does.
class HostStager final : public WeightStager {
 public:
  // `policy` is borrowed and is this rank's own. `wire` has the tensors of policy->manifest(), in order, in float32 or
  // bfloat16. Takes slots x the plan's send_bytes of this rank, or with `lends_base` (SendArena::Options) the base once.
  // Errors of SendArena::CreateForPlan and PlanStaging.
  static absl::StatusOr<std::unique_ptr<HostStager>> Create(Policy* policy, Manifest wire, int slots,
                                                            const StagedPart& part = {}, bool lends_base = false);
  ~HostStager() override;

  const Manifest& manifest() const override { return arena_->manifest(); }
  absl::Status Launch(const PolicyVersion& version) override;
  absl::StatusOr<Staged> Await() override { return arena_->Await(); }
  double TakeWaitSeconds() override { return std::exchange(wait_seconds_, 0); }
  synchronizer::WeightStore* store() override { return arena_.get(); }
  std::string layout() const override { return layout_; }
  int64_t bytes() const override { return arena_->allocated_bytes(); }
  absl::StatusOr<synchronizer::SharedMemory> LendBase() override { return arena_->LendBase(); }

 private:
  HostStager(Policy* policy, std::unique_ptr<synchronizer::SendArena> arena, DType dtype, int32_t world,
             std::vector<synchronizer::PackOp> pack)
      : policy_(policy),
        arena_(std::move(arena)),
        dtype_(dtype),
        layout_(SourceLayoutText(world, dtype)),
        pack_(std::move(pack)) {
    for (const synchronizer::PackOp& op : pack_) {
      if (arena_->manifest().tensors()[op.tensor].adapter) adapter_pack_.push_back(op);
    }
  }

  absl::Status FinishRead();

  Policy* const policy_;
  const std::unique_ptr<synchronizer::SendArena> arena_;
  const DType dtype_;  // of the shard as it is read
  const std::string layout_;
  const std::vector<synchronizer::PackOp> pack_;
  std::vector<synchronizer::PackOp> adapter_pack_;  // of pack_, those of adapters: what changes between versions
  double wait_seconds_ = 0;                         // of the policy's thread
};

}  // namespace syncopate::trainer
