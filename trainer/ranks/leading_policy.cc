#include "trainer/ranks/leading_policy.h"

#include "base/reasons.h"

namespace syncopate::trainer {

absl::Status LeadingPolicy::Tell(const RankCommand& command, const std::vector<const TrajectoryGroup*>& groups) const {
  SYNCOPATE_CHECK(followers_ != nullptr);
  return followers_->Send(command, groups);
}

absl::StatusOr<TrainStepMetrics> LeadingPolicy::Step(const std::vector<const TrajectoryGroup*>& groups, int64_t step) {
  SYNCOPATE_RETURN_IF_ERROR(Tell({.kind = RankCommand::Kind::kStep, .step = step}, groups));
  return policy_->Step(groups, step);
}

absl::StatusOr<TrainStepMetrics> LeadingPolicy::SupervisedStep(const std::vector<const TrajectoryGroup*>& groups) {
  SYNCOPATE_RETURN_IF_ERROR(Tell({.kind = RankCommand::Kind::kSupervisedStep}, groups));
  return policy_->SupervisedStep(groups);
}

absl::Status LeadingPolicy::WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink) const {
  SYNCOPATE_RETURN_IF_ERROR(Tell({.kind = RankCommand::Kind::kWriteTensor, .part = part, .tensor = index}));
  return policy_->WriteTensor(part, index, sink);
}

absl::Status LeadingPolicy::CopyParameters(DType dtype, void* whole) const {
  SYNCOPATE_RETURN_IF_ERROR(Tell({.kind = RankCommand::Kind::kCopyParameters, .dtype = dtype}));
  return policy_->CopyParameters(dtype, whole);
}

absl::StatusOr<uint64_t> LeadingPolicy::Digest() const {
  SYNCOPATE_RETURN_IF_ERROR(Tell({.kind = RankCommand::Kind::kDigest}));
  return policy_->Digest();
}

absl::Status LeadingPolicy::CheckFinite() const {
  SYNCOPATE_RETURN_IF_ERROR(Tell({.kind = RankCommand::Kind::kCheckFinite}));
  return policy_->CheckFinite();
}

absl::Status ObeyCommand(Policy& policy, const RankCommand& command,
                         const std::vector<const TrajectoryGroup*>& groups) {
  switch (command.kind) {
    case RankCommand::Kind::kStep:
      return policy.Step(groups, command.step).status();
    case RankCommand::Kind::kSupervisedStep:
      return policy.SupervisedStep(groups).status();
    case RankCommand::Kind::kWriteTensor:
      return policy.WriteTensor(command.part, command.tensor,
                                [](absl::string_view) { return absl::InternalError("only rank 0 is given tensors"); });
    case RankCommand::Kind::kDigest:
      return policy.Digest().status();
    case RankCommand::Kind::kCopyParameters:
      return policy.CopyParameters(command.dtype, nullptr);
    case RankCommand::Kind::kCheckFinite:
      break;
  }
  const absl::Status finite = policy.CheckFinite();
  return ErrorReason(finite) == reason::kNonFinite ? absl::OkStatus() : finite;
}

}  // namespace syncopate::trainer
