#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "synchronizer/plan/pack.h"
#include "synchronizer/transport/host_buffer.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// Staging in host memory, for policies on any device: what the transports "inproc" and "grpc" send.
class HostStager final : public WeightStager {
 public:
  // `policy` is borrowed. `wire` has the tensors of policy->manifest(), in order, in float32 or bfloat16. Errors as
  // SendArena::Create. `destination`: the layout of the receivers; "": each has everything. For any other the weights are
  // written to host memory of their own first, and from there in the order of the plan.
  static absl::StatusOr<std::unique_ptr<HostStager>> Create(Policy* policy, Manifest wire, int slots,
                                                            const std::string& destination = "");

  const Manifest& manifest() const override { return arena_->manifest(); }
  absl::StatusOr<Staged> Stage(const PolicyVersion& version) override;
  synchronizer::WeightStore* store() override { return arena_.get(); }
  int64_t bytes() const override { return slots_ * arena_->arena_bytes() + whole_.size(); }

 private:
  HostStager(Policy* policy, std::unique_ptr<synchronizer::SendArena> arena, int slots)
      : policy_(policy), arena_(std::move(arena)), slots_(slots) {}
  // To an arena in the manifest's order.
  absl::Status WriteWeights(char* arena) const;

  Policy* const policy_;
  const std::unique_ptr<synchronizer::SendArena> arena_;
  const int slots_;
  // With a plan: the weights in the manifest's order, and how they become those of the plan.
  synchronizer::HostBuffer whole_;
  std::vector<synchronizer::PackOp> pack_;
};

}  // namespace syncopate::trainer
