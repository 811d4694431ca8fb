#pragma once

#include <memory>

#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// Staging in host memory, for policies on any device: what the transports "inproc" and "grpc" send.
class HostStager final : public WeightStager {
 public:
  // `policy` is borrowed. `wire` has the tensors of policy->manifest(), in order, in float32 or bfloat16. Errors as
  // SendArena::Create.
  static absl::StatusOr<std::unique_ptr<HostStager>> Create(Policy* policy, Manifest wire, int slots);

  const Manifest& manifest() const override { return arena_->manifest(); }
  absl::StatusOr<Staged> Stage(const PolicyVersion& version) override;
  synchronizer::WeightStore* store() override { return arena_.get(); }
  int64_t bytes() const override { return slots_ * manifest().arena_bytes(); }

 private:
  HostStager(Policy* policy, std::unique_ptr<synchronizer::SendArena> arena, int slots)
      : policy_(policy), arena_(std::move(arena)), slots_(slots) {}

  Policy* const policy_;
  const std::unique_ptr<synchronizer::SendArena> arena_;
  const int slots_;
};

}  // namespace syncopate::trainer
