#include "services/wire/codec.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/identity.h"
#include "syncopate/v1/records.pb.h"

namespace syncopate::wire {
namespace {

absl::Status BadMessage(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", message);
}

absl::StatusOr<LeaseKind> KindFromProto(v1::LeaseKind kind) {
  switch (kind) {
    case v1::LEASE_KIND_TRAINING:
      return LeaseKind::kTraining;
    case v1::LEASE_KIND_EVALUATION:
      return LeaseKind::kEvaluation;
    default:
      return BadMessage(absl::StrCat("lease kind ", static_cast<int>(kind), " is not known"));
  }
}

v1::LeaseKind KindToProto(LeaseKind kind) {
  return kind == LeaseKind::kTraining ? v1::LEASE_KIND_TRAINING : v1::LEASE_KIND_EVALUATION;
}

absl::StatusOr<FinishReason> FinishFromProto(v1::FinishReason finish) {
  // proto3 keeps unknown enum values.
  if (finish < v1::FINISH_REASON_STOP || finish > v1::FINISH_REASON_ABORTED) {
    return BadMessage(absl::StrCat("finish reason ", static_cast<int>(finish), " is not known"));
  }
  return static_cast<FinishReason>(finish);  // the numbers are the same
}

v1::Trajectory TrajectoryToProto(const Trajectory& trajectory) {
  v1::Trajectory message;
  message.mutable_tokens()->Assign(trajectory.tokens.begin(), trajectory.tokens.end());
  message.mutable_logprobs()->Assign(trajectory.logprobs.begin(), trajectory.logprobs.end());
  for (const VersionSpan& span : trajectory.spans) *message.add_spans() = ToProto(span);
  message.set_finish(ToProto(trajectory.finish));
  message.set_reward(trajectory.reward);
  for (const RewardPart& part : trajectory.reward_parts) {
    v1::RewardPart* added = message.add_reward_parts();
    added->set_name(part.name);
    added->set_value(part.value);
  }
  message.set_generate_seconds(trajectory.generate_seconds);
  for (const TokenRange& range : trajectory.given) {
    v1::TokenRange* added = message.add_given();
    added->set_begin(range.begin);
    added->set_end(range.end);
  }
  message.set_extracted(trajectory.extracted);
  for (const Turn& turn : trajectory.turns) {
    v1::Turn* added = message.add_turns();
    added->set_end(turn.end);
    added->set_reward(turn.reward);
    added->set_seconds(turn.seconds);
  }
  message.set_rejected(trajectory.rejected);
  return message;
}

absl::StatusOr<Trajectory> TrajectoryFromProto(const v1::Trajectory& message) {
  Trajectory trajectory;
  // Lists with a common index must have one size; CheckSubmission checks the rest of a trajectory.
  if (message.tokens_size() != message.logprobs_size()) {
    return BadMessage(absl::StrCat("a trajectory has ", message.tokens_size(), " tokens and ", message.logprobs_size(),
                                   " log-probs"));
  }
  trajectory.tokens.assign(message.tokens().data(), message.tokens().data() + message.tokens_size());
  trajectory.logprobs.assign(message.logprobs().data(), message.logprobs().data() + message.logprobs_size());
  for (const v1::VersionSpan& span : message.spans()) {
    trajectory.spans.push_back({FromProto(span.version()), span.begin(), span.end()});
  }
  SYNCOPATE_ASSIGN_OR_RETURN(trajectory.finish, FinishFromProto(message.finish()));
  trajectory.reward = message.reward();
  for (const v1::RewardPart& part : message.reward_parts()) {
    trajectory.reward_parts.push_back({part.name(), part.value()});
  }
  trajectory.generate_seconds = message.generate_seconds();
  for (const v1::TokenRange& range : message.given()) trajectory.given.push_back({range.begin(), range.end()});
  trajectory.extracted = message.extracted();
  for (const v1::Turn& turn : message.turns()) trajectory.turns.push_back({turn.end(), turn.reward(), turn.seconds()});
  trajectory.rejected = message.rejected();
  return trajectory;
}

}  // namespace

v1::PolicyVersion ToProto(const PolicyVersion& version) {
  v1::PolicyVersion message;
  message.set_epoch(version.epoch);
  message.set_step(version.step);
  return message;
}

PolicyVersion FromProto(const v1::PolicyVersion& message) { return {message.epoch(), message.step()}; }

std::string VersionText(const v1::PolicyVersion& message) {
  const PolicyVersion version = FromProto(message);
  return version.IsNone() ? "-" : version.ToString();
}

v1::MemberId ToProto(const MemberId& member) {
  v1::MemberId message;
  message.set_role(member.role == "trainer" ? v1::ROLE_TRAINER : v1::ROLE_ROLLOUTER);
  message.set_replica_id(member.replica_id);
  message.set_rank(member.rank);
  message.set_world(member.world);
  message.set_incarnation(member.incarnation);
  return message;
}

absl::StatusOr<MemberId> FromProto(const v1::MemberId& message) {
  if (message.role() != v1::ROLE_TRAINER && message.role() != v1::ROLE_ROLLOUTER) {
    return BadMessage("member.role must be trainer or rollouter");
  }
  MemberId member{message.role() == v1::ROLE_TRAINER ? "trainer" : "rollouter", message.replica_id(), message.rank(),
                  message.world(), message.incarnation()};
  // Names of members become file names and metric labels, so they are checked where they arrive.
  SYNCOPATE_RETURN_IF_ERROR(CheckMember(member));
  return member;
}

v1::GroupId ToProto(const GroupId& group) {
  v1::GroupId message;
  message.set_pass(group.pass);
  message.set_ordinal(group.ordinal);
  return message;
}

GroupId FromProto(const v1::GroupId& message) { return {message.pass(), message.ordinal()}; }

v1::LeaseId ToProto(const LeaseId& lease) {
  v1::LeaseId message;
  *message.mutable_group() = ToProto(lease.group);
  message.set_attempt(lease.attempt);
  return message;
}

LeaseId FromProto(const v1::LeaseId& message) { return {FromProto(message.group()), message.attempt()}; }

v1::SamplingParams ToProto(const SamplingParams& sampling) {
  v1::SamplingParams message;
  message.set_temperature(sampling.temperature);
  message.set_top_p(sampling.top_p);
  message.set_top_k(sampling.top_k);
  message.set_max_new_tokens(sampling.max_new_tokens);
  message.mutable_stop_token_ids()->Assign(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
  message.set_min_p(sampling.min_p);
  // 1 is the default, which FromProto() also reads from a missing field.
  if (sampling.repetition_penalty != 1) message.set_repetition_penalty(sampling.repetition_penalty);
  message.set_presence_penalty(sampling.presence_penalty);
  message.set_frequency_penalty(sampling.frequency_penalty);
  for (const TokenBias& bias : sampling.logit_bias) {
    v1::TokenBias* added = message.add_logit_bias();
    added->set_token(bias.token);
    added->set_bias(bias.bias);
  }
  message.mutable_allowed_token_ids()->Assign(sampling.allowed_token_ids.begin(), sampling.allowed_token_ids.end());
  for (const std::vector<int32_t>& stop : sampling.stop_sequences) {
    message.add_stop_sequences()->mutable_tokens()->Assign(stop.begin(), stop.end());
  }
  message.set_top_logprobs(sampling.top_logprobs);
  return message;
}

SamplingParams FromProto(const v1::SamplingParams& message) {
  SamplingParams sampling;
  sampling.temperature = message.temperature();
  // A message without the field gives 0, which has no meaning of its own; the penalty below is read in the same manner.
  sampling.top_p = message.top_p() == 0 ? 1.0f : message.top_p();
  sampling.top_k = message.top_k();
  sampling.max_new_tokens = message.max_new_tokens();
  sampling.stop_token_ids.assign(message.stop_token_ids().begin(), message.stop_token_ids().end());
  sampling.min_p = message.min_p();
  sampling.repetition_penalty = message.repetition_penalty() == 0 ? 1.0f : message.repetition_penalty();
  sampling.presence_penalty = message.presence_penalty();
  sampling.frequency_penalty = message.frequency_penalty();
  for (const v1::TokenBias& bias : message.logit_bias()) sampling.logit_bias.push_back({bias.token(), bias.bias()});
  sampling.allowed_token_ids.assign(message.allowed_token_ids().begin(), message.allowed_token_ids().end());
  for (const v1::TokenSequence& stop : message.stop_sequences()) {
    sampling.stop_sequences.emplace_back(stop.tokens().begin(), stop.tokens().end());
  }
  sampling.top_logprobs = message.top_logprobs();
  return sampling;
}

v1::ExchangeResponse::Lease ToProto(const Lease& lease) {
  v1::ExchangeResponse::Lease message;
  *message.mutable_id() = ToProto(lease.id);
  message.set_kind(KindToProto(lease.kind));
  *message.mutable_version() = ToProto(lease.version);
  message.set_samples(lease.samples);
  message.mutable_prompt_ids()->Assign(lease.prompt_ids.begin(), lease.prompt_ids.end());
  message.mutable_answer_ids()->Assign(lease.answer_ids.begin(), lease.answer_ids.end());
  // An empty field costs no bytes, and built-in tasks have none.
  if (lease.task != Task{}) {
    message.mutable_task()->set_environment(lease.task.environment);
    message.mutable_task()->set_row_json(lease.task.row_json);
  }
  message.set_reward(lease.reward);
  *message.mutable_sampling() = ToProto(lease.sampling);
  message.set_seed(lease.seed);
  for (const AnswerStart& start : lease.starts) {
    v1::ExchangeResponse::Start* added = message.add_starts();
    added->mutable_tokens()->Assign(start.tokens.begin(), start.tokens.end());
    if (start.finish.has_value()) added->set_finish(ToProto(*start.finish));
  }
  return message;
}

absl::StatusOr<Lease> FromProto(const v1::ExchangeResponse::Lease& message) {
  Lease lease;
  lease.id = FromProto(message.id());
  SYNCOPATE_ASSIGN_OR_RETURN(lease.kind, KindFromProto(message.kind()));
  lease.version = FromProto(message.version());
  if (message.samples() < 1) return BadMessage(absl::StrCat("lease.samples is ", message.samples()));
  lease.samples = message.samples();
  lease.prompt_ids.assign(message.prompt_ids().begin(), message.prompt_ids().end());
  lease.answer_ids.assign(message.answer_ids().begin(), message.answer_ids().end());
  lease.task = {message.task().environment(), message.task().row_json()};
  lease.reward = message.reward();
  lease.sampling = FromProto(message.sampling());
  // Log-probabilities of a filtered distribution differ from those that training computes.
  if (lease.kind == LeaseKind::kTraining && !lease.sampling.DrawsFromThePolicy()) {
    return BadMessage("a training lease that does not draw from the policy itself");
  }
  lease.seed = message.seed();
  if (message.starts_size() != 0 && message.starts_size() != message.samples()) {
    return BadMessage(
        absl::StrCat("a lease of ", message.samples(), " samples with ", message.starts_size(), " starts"));
  }
  for (const v1::ExchangeResponse::Start& start : message.starts()) {
    AnswerStart& added = lease.starts.emplace_back();
    added.tokens.assign(start.tokens().begin(), start.tokens().end());
    if (start.finish() == v1::FINISH_REASON_UNSPECIFIED) continue;
    SYNCOPATE_ASSIGN_OR_RETURN(added.finish, FinishFromProto(start.finish()));
  }
  return lease;
}

v1::ExchangeRequest::Part ToProto(const LeaseId& lease, const AnswerPart& part) {
  v1::ExchangeRequest::Part message;
  *message.mutable_lease() = ToProto(lease);
  message.set_sample(part.sample);
  message.set_begin(part.begin);
  v1::Trajectory* continued = message.mutable_continued();
  continued->mutable_tokens()->Assign(part.tokens.begin(), part.tokens.end());
  continued->mutable_logprobs()->Assign(part.logprobs.begin(), part.logprobs.end());
  for (VersionSpan span : part.spans) {
    span.begin -= part.begin;
    span.end -= part.begin;
    *continued->add_spans() = ToProto(span);
  }
  if (part.finish.has_value()) continued->set_finish(ToProto(*part.finish));
  return message;
}

absl::StatusOr<AnswerPart> FromProto(const v1::ExchangeRequest::Part& message) {
  const v1::Trajectory& continued = message.continued();
  AnswerPart part{.sample = message.sample(), .begin = message.begin()};
  if (part.begin < 0 || part.begin > INT32_MAX - continued.tokens_size()) {
    return BadMessage(absl::StrCat("a part of an answer begins at ", part.begin));
  }
  part.tokens.assign(continued.tokens().begin(), continued.tokens().end());
  part.logprobs.assign(continued.logprobs().begin(), continued.logprobs().end());
  for (const v1::VersionSpan& span : continued.spans()) {
    if (span.begin() < 0 || span.end() > continued.tokens_size()) return BadMessage("a span outside its part");
    part.spans.push_back({FromProto(span.version()), part.begin + span.begin(), part.begin + span.end()});
  }
  if (continued.finish() != v1::FINISH_REASON_UNSPECIFIED) {
    SYNCOPATE_ASSIGN_OR_RETURN(part.finish, FinishFromProto(continued.finish()));
  }
  return part;
}

v1::TopLogProbs ToProto(const std::vector<TokenLogProb>& top) {
  v1::TopLogProbs message;
  for (const TokenLogProb& token : top) {
    message.add_tokens(token.token);
    message.add_logprobs(token.logprob);
  }
  return message;
}

v1::VersionSpan ToProto(const VersionSpan& span) {
  v1::VersionSpan message;
  *message.mutable_version() = ToProto(span.version);
  message.set_begin(span.begin);
  message.set_end(span.end);
  return message;
}

v1::FinishReason ToProto(FinishReason finish) { return static_cast<v1::FinishReason>(finish); }

v1::TrajectoryGroup ToProto(const TrajectoryGroup& group) {
  v1::TrajectoryGroup message;
  *message.mutable_lease() = ToProto(group.lease);
  message.set_kind(KindToProto(group.kind));
  message.set_rollouter(group.rollouter);
  message.set_incarnation(group.incarnation);
  message.mutable_prompt_ids()->Assign(group.prompt_ids.begin(), group.prompt_ids.end());
  for (const Trajectory& sample : group.samples) *message.add_samples() = TrajectoryToProto(sample);
  return message;
}

absl::StatusOr<TrajectoryGroup> FromProto(const v1::TrajectoryGroup& message) {
  TrajectoryGroup group;
  group.lease = FromProto(message.lease());
  SYNCOPATE_ASSIGN_OR_RETURN(group.kind, KindFromProto(message.kind()));
  group.rollouter = message.rollouter();
  group.incarnation = message.incarnation();
  group.prompt_ids.assign(message.prompt_ids().begin(), message.prompt_ids().end());
  group.samples.reserve(message.samples_size());
  // One bad sample refuses the group: a group is trained whole or not at all.
  for (const v1::Trajectory& sample : message.samples()) {
    SYNCOPATE_ASSIGN_OR_RETURN(Trajectory trajectory, TrajectoryFromProto(sample));
    group.samples.push_back(std::move(trajectory));
  }
  return group;
}

v1::Manifest ToProto(const Manifest& manifest) {
  v1::Manifest message;
  for (const TensorSpec& spec : manifest.tensors()) {
    v1::TensorSpec* tensor = message.add_tensors();
    tensor->set_name(spec.name);
    tensor->set_dtype(spec.dtype == DType::kFloat32 ? v1::DTYPE_FLOAT32 : v1::DTYPE_BFLOAT16);
    tensor->mutable_shape()->Assign(spec.shape.begin(), spec.shape.end());
    tensor->set_unit(spec.unit);
    tensor->set_split(static_cast<v1::TensorSpec::Split>(spec.split));
    tensor->set_head(spec.head);
    tensor->set_joint(spec.joint);
    tensor->set_adapter(spec.adapter);
    tensor->set_spare_rows(spec.spare_rows);
  }
  message.set_bucket_bytes(manifest.bucket_bytes());
  message.set_fingerprint(manifest.fingerprint());
  return message;
}

absl::StatusOr<Manifest> FromProto(const v1::Manifest& message) {
  std::vector<TensorSpec> specs;
  specs.reserve(message.tensors_size());
  for (const v1::TensorSpec& tensor : message.tensors()) {
    if (tensor.dtype() != v1::DTYPE_FLOAT32 && tensor.dtype() != v1::DTYPE_BFLOAT16) {
      return BadMessage(absl::StrCat("tensor ", tensor.name(), " has no dtype that travels"));
    }
    // proto3 keeps unknown enum values; a plan made with one would send the wrong bytes.
    if (!v1::TensorSpec::Split_IsValid(tensor.split())) {
      return BadMessage(
          absl::StrCat("tensor ", tensor.name(), " is shared out in a way that this build does not know"));
    }
    specs.push_back({.name = tensor.name(),
                     .dtype = tensor.dtype() == v1::DTYPE_FLOAT32 ? DType::kFloat32 : DType::kBFloat16,
                     .shape = {tensor.shape().begin(), tensor.shape().end()},
                     .unit = tensor.unit(),
                     .split = static_cast<Split>(tensor.split()),
                     .head = tensor.head(),
                     .joint = tensor.joint(),
                     .adapter = tensor.adapter(),
                     .spare_rows = tensor.spare_rows()});
  }
  // All checks of a manifest are made again, because its numbers become offsets into memory.
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest, Manifest::Create(std::move(specs), message.bucket_bytes()));
  // Both sides compute the layout: a build that computes another one is found here, and not by wrong weights.
  if (manifest.fingerprint() != message.fingerprint()) {
    return BadMessage("the manifest's fingerprint is not that of its tensors; are both sides of one version?");
  }
  return manifest;
}

std::string EncodeEvent(const std::string& name, double unix_seconds, double steady_seconds, const RunEvent& event) {
  v1::Event message;
  message.set_unix_seconds(unix_seconds);
  message.set_mono_seconds(steady_seconds);
  message.set_role(name);
  message.set_kind(event.kind);
  *message.mutable_version() = ToProto(event.version);
  message.set_attempt(event.attempt);
  message.mutable_fields()->insert(event.fields.begin(), event.fields.end());
  return message.SerializeAsString();
}

}  // namespace syncopate::wire
