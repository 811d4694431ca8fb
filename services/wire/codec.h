#pragma once

#include "base/event_recorder.h"
#include "base/manifest.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "syncopate/v1/common.pb.h"
#include "syncopate/v1/trajectory.pb.h"

// Core records to messages and back. Encoding cannot fail. Decoding checks each field: INVALID_ARGUMENT (reason
// BAD_MESSAGE), naming the field, for an unknown enum value, sizes that disagree or impossible numbers. Relations
// between fields (is the lease current, is the version known) are checked by the users of the records. Pure functions.
namespace syncopate::wire {

v1::PolicyVersion ToProto(const PolicyVersion& version);
PolicyVersion FromProto(const v1::PolicyVersion& message);  // an unset message is "none"
// The version in the notation for people: "e1-s42", or "-" for none.
std::string VersionText(const v1::PolicyVersion& message);

v1::MemberId ToProto(const MemberId& member);
absl::StatusOr<MemberId> FromProto(const v1::MemberId& message);  // also the errors of CheckMember

v1::GroupId ToProto(const GroupId& group);
GroupId FromProto(const v1::GroupId& message);
v1::LeaseId ToProto(const LeaseId& lease);
LeaseId FromProto(const v1::LeaseId& message);

v1::SamplingParams ToProto(const SamplingParams& sampling);
// top_p 0 and repetition_penalty 0 are read as 1 (off).
SamplingParams FromProto(const v1::SamplingParams& message);
v1::TopLogProbs ToProto(const std::vector<TokenLogProb>& top);

v1::ExchangeResponse::Lease ToProto(const Lease& lease);
absl::StatusOr<Lease> FromProto(const v1::ExchangeResponse::Lease& message);

v1::ExchangeRequest::Part ToProto(const LeaseId& lease, const AnswerPart& part);
// BAD_MESSAGE for places that no answer has; PartialAnswers checks the rest of a part.
absl::StatusOr<AnswerPart> FromProto(const v1::ExchangeRequest::Part& message);

v1::VersionSpan ToProto(const VersionSpan& span);
v1::FinishReason ToProto(FinishReason finish);

v1::TrajectoryGroup ToProto(const TrajectoryGroup& group);
absl::StatusOr<TrajectoryGroup> FromProto(const v1::TrajectoryGroup& message);

// FromProto rebuilds ranges and fingerprint itself; a fingerprint that differs from the message's is BAD_MESSAGE.
v1::Manifest ToProto(const Manifest& manifest);
absl::StatusOr<Manifest> FromProto(const v1::Manifest& message);

// A record of a daemon's event log (v1::Event), for EventRecorder.
std::string EncodeEvent(const std::string& name, double unix_seconds, double steady_seconds, const RunEvent& event);

}  // namespace syncopate::wire
