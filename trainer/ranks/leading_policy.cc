#include "trainer/ranks/leading_policy.h"

#include "base/reasons.h"

namespace syncopate::trainer {

// The other ranks are told first, because the call that follows meets them in collectives. If a rank cannot be reached,
// the caller begins nothing.
absl::Status LeadingPolicy::SendToOthers(const PolicyCommand& command,
                                         const std::vector<const TrajectoryGroup*>& groups) const {
  SYNCOPATE_CHECK(followers_ != nullptr);
  return followers_->Send(command, groups);
}

absl::StatusOr<StepFigures> LeadingPolicy::Step(const std::vector<const TrajectoryGroup*>& groups, int64_t step) {
  SYNCOPATE_RETURN_IF_ERROR(SendToOthers({.kind = PolicyCommand::Kind::kStep, .step = step}, groups));
  return policy_->Step(groups, step);
}

absl::StatusOr<StepFigures> LeadingPolicy::SupervisedStep(const std::vector<const TrajectoryGroup*>& groups) {
  SYNCOPATE_RETURN_IF_ERROR(SendToOthers({.kind = PolicyCommand::Kind::kSupervisedStep}, groups));
  return policy_->SupervisedStep(groups);
}

absl::StatusOr<HeldOutLoss> LeadingPolicy::MeasureSupervised(const std::vector<const TrajectoryGroup*>& groups) {
  SYNCOPATE_RETURN_IF_ERROR(SendToOthers({.kind = PolicyCommand::Kind::kMeasureSupervised}, groups));
  return policy_->MeasureSupervised(groups);
}

absl::Status LeadingPolicy::WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink) const {
  SYNCOPATE_RETURN_IF_ERROR(SendToOthers({.kind = PolicyCommand::Kind::kWriteTensor, .part = part, .tensor = index}));
  return policy_->WriteTensor(part, index, sink);
}

absl::StatusOr<std::shared_ptr<const PolicySnapshot>> LeadingPolicy::TakeSnapshot(const std::string& folder) const {
  SYNCOPATE_RETURN_IF_ERROR(SendToOthers({.kind = PolicyCommand::Kind::kSave, .folder = folder}));
  return policy_->TakeSnapshot(folder);
}

absl::StatusOr<std::shared_ptr<const PolicySnapshot>> LeadingPolicy::TakeWeights(const std::string& folder) const {
  SYNCOPATE_RETURN_IF_ERROR(SendToOthers({.kind = PolicyCommand::Kind::kExport, .folder = folder}));
  return policy_->TakeWeights(folder);
}

absl::StatusOr<uint64_t> LeadingPolicy::Digest() const {
  SYNCOPATE_RETURN_IF_ERROR(SendToOthers({.kind = PolicyCommand::Kind::kDigest}));
  return policy_->Digest();
}

absl::Status LeadingPolicy::CheckFinite() const {
  SYNCOPATE_RETURN_IF_ERROR(SendToOthers({.kind = PolicyCommand::Kind::kCheckFinite}));
  return policy_->CheckFinite();
}

absl::Status LeadingPolicy::SendMove(PolicyCommand::Move move) const {
  return SendToOthers({.kind = PolicyCommand::Kind::kMoveState, .move = move});
}

absl::Status LeadingPolicy::BeginUse() {
  SYNCOPATE_RETURN_IF_ERROR(SendMove(PolicyCommand::Move::kBeginUse));
  return policy_->BeginUse();
}

// Rank 0's own weights leave the device even if the command reaches no other rank.
absl::Status LeadingPolicy::EndUse() {
  const absl::Status told = SendMove(PolicyCommand::Move::kEndUse);
  const absl::Status ended = policy_->EndUse();
  return told.ok() ? ended : told;
}

absl::StatusOr<StateMoves> LeadingPolicy::EnterRolloutMode() {
  SYNCOPATE_RETURN_IF_ERROR(SendMove(PolicyCommand::Move::kRolloutMode));
  return policy_->EnterRolloutMode();
}

absl::StatusOr<StateMoves> LeadingPolicy::EnterTrainerMode() {
  SYNCOPATE_RETURN_IF_ERROR(SendMove(PolicyCommand::Move::kTrainerMode));
  return policy_->EnterTrainerMode();
}

namespace {

absl::Status MoveState(Policy& policy, PolicyCommand::Move move) {
  switch (move) {
    case PolicyCommand::Move::kBeginUse:
      return policy.BeginUse();
    case PolicyCommand::Move::kEndUse:
      return policy.EndUse();
    case PolicyCommand::Move::kRolloutMode:
      return policy.EnterRolloutMode().status();
    case PolicyCommand::Move::kTrainerMode:
      return policy.EnterTrainerMode().status();
    case PolicyCommand::Move::kStagedLeaves:
      break;
  }
  return absl::InternalError("what is staged is the caller's");
}

}  // namespace

absl::Status ObeyCommand(Policy& policy, const PolicyCommand& command,
                         const std::vector<const TrajectoryGroup*>& groups) {
  switch (command.kind) {
    case PolicyCommand::Kind::kStep:
      return policy.Step(groups, command.step).status();
    case PolicyCommand::Kind::kSupervisedStep:
      return policy.SupervisedStep(groups).status();
    case PolicyCommand::Kind::kMeasureSupervised:
      return policy.MeasureSupervised(groups).status();
    case PolicyCommand::Kind::kWriteTensor:
      return policy.WriteTensor(command.part, command.tensor,
                                [](absl::string_view) { return absl::InternalError("only rank 0 is given tensors"); });
    case PolicyCommand::Kind::kDigest:
      return policy.Digest().status();
    case PolicyCommand::Kind::kMoveState:
      return MoveState(policy, command.move);
    case PolicyCommand::Kind::kStage:
    case PolicyCommand::Kind::kSave:
    case PolicyCommand::Kind::kExport:
      return absl::InternalError("what is saved, exported and staged is the caller's");
    case PolicyCommand::Kind::kCheckFinite:
      break;
  }
  const absl::Status finite = policy.CheckFinite();
  // Rank 0 has seen the same and decides what comes of it; this rank can go on.
  return ErrorReason(finite) == reason::kNonFinite ? absl::OkStatus() : finite;
}

}  // namespace syncopate::trainer
