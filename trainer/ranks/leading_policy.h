#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/policy_version.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// A call of a Policy that all ranks make together, as rank 0 tells it to the others.
struct PolicyCommand {
  enum class Kind : uint8_t {
    kStep,
    kSupervisedStep,
    kMeasureSupervised,
    kWriteTensor,
    kDigest,
    kCheckFinite,
    kStage,
    kMoveState,
    kSave,
    kExport
  };
  // What kMoveState does. kStagedLeaves: what is staged leaves the device (WeightStager::LeaveDevice), until the next
  // kStage or kTrainerMode.
  enum class Move : uint8_t { kBeginUse, kEndUse, kRolloutMode, kTrainerMode, kStagedLeaves };
  Kind kind = Kind::kDigest;
  int64_t step = 0;                           // kStep: that it begins with
  PolicyPart part = PolicyPart::kParameters;  // kWriteTensor
  size_t tensor = 0;                          // kWriteTensor
  PolicyVersion version = {};                 // kStage
  Move move = Move::kBeginUse;                // kMoveState
  std::string folder = {};                    // kSave: in the folder of checkpoints; kExport: in that of exports
};

// The connection from rank 0 to the other ranks.
class PolicyFollowers {
 public:
  virtual ~PolicyFollowers() = default;
  // Tells all of them, in the order of calls; `groups` are those of a step. Does not wait for them. UNAVAILABLE (reason
  // RANK_LOST) if one is gone.
  virtual absl::Status Send(const PolicyCommand& command, const std::vector<const TrajectoryGroup*>& groups) = 0;
};

// Rank 0's end of a policy that several ranks share; its caller need not know of the other ranks. Each call is sent to
// the other ranks and then made here. One order of commands gives one order of collectives, so ranks cannot deadlock.
class LeadingPolicy final : public Policy {
 public:
  // `policy` is borrowed.
  explicit LeadingPolicy(Policy* policy) : policy_(policy) {}
  // Before the first call of those below, but for manifest() and updates(); borrowed.
  void Lead(PolicyFollowers* followers) { followers_ = followers; }

  const Manifest& manifest() const override { return policy_->manifest(); }
  int64_t updates() const override { return policy_->updates(); }
  absl::StatusOr<StepFigures> Step(const std::vector<const TrajectoryGroup*>& groups, int64_t step) override;
  absl::StatusOr<StepFigures> SupervisedStep(const std::vector<const TrajectoryGroup*>& groups) override;
  absl::StatusOr<HeldOutLoss> MeasureSupervised(const std::vector<const TrajectoryGroup*>& groups) override;
  const Manifest& trained() const override { return policy_->trained(); }
  absl::StatusOr<uint64_t> BaseDigest() const override { return policy_->BaseDigest(); }  // rank 0 knows it alone
  absl::Status WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink) const override;
  absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeSnapshot(const std::string& folder) const override;
  absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeWeights(const std::string& folder) const override;
  // What follows is this rank's only.
  absl::Status SetReader(std::function<absl::Status()> finish) override {
    return policy_->SetReader(std::move(finish));
  }
  absl::Status ReadShard(DType dtype, const ShardSink& sink) const override { return policy_->ReadShard(dtype, sink); }
  absl::Status ReadTrained(DType dtype, const ShardSink& sink) const override {
    return policy_->ReadTrained(dtype, sink);
  }
  DType GetShardDType(const Manifest& wire) const override { return policy_->GetShardDType(wire); }
  absl::StatusOr<uint64_t> Digest() const override;
  absl::Status CheckFinite() const override;
  absl::Status BeginUse() override;
  absl::Status EndUse() override;
  absl::StatusOr<StateMoves> EnterRolloutMode() override;
  absl::StatusOr<StateMoves> EnterTrainerMode() override;
  bool reads_on_host() const override { return policy_->reads_on_host(); }  // the same on all ranks
  // Both are this rank's only.
  PolicyMemory memory() const override { return policy_->memory(); }
  PolicyMoves TakeMoves() override { return policy_->TakeMoves(); }

 private:
  absl::Status SendMove(PolicyCommand::Move move) const;
  absl::Status SendToOthers(const PolicyCommand& command, const std::vector<const TrajectoryGroup*>& groups = {}) const;

  Policy* const policy_;
  PolicyFollowers* followers_ = nullptr;
};

// What another rank does when it is told: the same call of its own policy. The policy's error, but for a finding that
// rank 0 has made too and deals with (reason NON_FINITE). Not kSave, kExport, kStage
// and kStagedLeaves, whose copies are the caller's.
absl::Status ObeyCommand(Policy& policy, const PolicyCommand& command,
                         const std::vector<const TrajectoryGroup*>& groups);

}  // namespace syncopate::trainer
