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
// Launch makes the copy, one pass over the shard; Await checks and digests it.
class HostStager final : public WeightStager {
 public:
  // `policy` is borrowed and is this rank's own. `wire` has the tensors of policy->manifest(), in order, in float32 or
  // bfloat16. Takes slots x the plan's send_bytes of this rank. Errors of SendArena::CreateForPlan and PlanStaging.
  static absl::StatusOr<std::unique_ptr<HostStager>> Create(const Policy* policy, Manifest wire, int slots,
                                                            const StagedPart& part = {});

  const Manifest& manifest() const override { return arena_->manifest(); }
  absl::Status Launch(const PolicyVersion& version) override;
  absl::StatusOr<Staged> Await() override { return arena_->Await(); }
  synchronizer::WeightStore* store() override { return arena_.get(); }
  std::string layout() const override { return layout_; }
  int64_t bytes() const override { return slots_ * arena_->arena_bytes(); }

 private:
  HostStager(const Policy* policy, std::unique_ptr<synchronizer::SendArena> arena, int slots, std::string layout,
             std::vector<synchronizer::PackOp> pack)
      : policy_(policy), arena_(std::move(arena)), slots_(slots), layout_(std::move(layout)), pack_(std::move(pack)) {}

  const Policy* const policy_;
  const std::unique_ptr<synchronizer::SendArena> arena_;
  const int slots_;
  const std::string layout_;
  const std::vector<synchronizer::PackOp> pack_;
};

}  // namespace syncopate::trainer
