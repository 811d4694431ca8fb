#include "rollouter/trajectory/group_assembly.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"

namespace syncopate::rollouter {

GenerationRequest RequestFor(const Lease& lease, const std::string& id) {
  GenerationRequest request;
  request.id = id;
  request.prompt_ids = lease.prompt_ids;
  request.sampling = lease.sampling;
  for (int32_t i = 0; i < lease.samples; ++i) request.seeds.push_back(SampleSeed(lease.seed, i));
  // Only evaluation needs one version; training groups may continue across an install.
  request.holds_install = lease.kind == LeaseKind::kEvaluation;
  return request;
}

GroupAssembly::GroupAssembly(Lease lease, const MemberId& member, Done done, std::shared_ptr<TokenCount> made,
                             const StopRules* stops)
    : lease_(std::move(lease)),
      done_(std::move(done)),
      made_(std::move(made)),
      stops_(stops, lease_.samples),
      missing_(lease_.samples) {
  group_.lease = lease_.id;
  group_.kind = lease_.kind;
  group_.rollouter = member.replica_id;
  group_.incarnation = member.incarnation;
  group_.prompt_ids = lease_.prompt_ids;
  group_.samples.resize(static_cast<size_t>(lease_.samples));
}

void GroupAssembly::OnFinished(int32_t sample, Trajectory trajectory) {
  group_.samples[static_cast<size_t>(sample)] = std::move(trajectory);
  if (--missing_ == 0) done_(Finish());
}

absl::StatusOr<TrajectoryGroup> GroupAssembly::Finish() {
  for (Trajectory& sample : group_.samples) {
    if (sample.finish == FinishReason::kAborted) {
      return Error(absl::StatusCode::kAborted, "GROUP_ABORTED",
                   absl::StrCat("generation of group ", lease_.id.group.ToString(), " was ended early"));
    }
    for (const VersionSpan& span : sample.spans) {
      if (lease_.kind == LeaseKind::kEvaluation && span.version != lease_.version) {
        return Error(absl::StatusCode::kAborted, reason::kWrongVersion,
                     absl::StrCat("evaluation of ", lease_.version.ToString(), " got tokens of ",
                                  span.version.ToString(), "; ask again"));
      }
    }
    SYNCOPATE_RETURN_IF_ERROR(
        Annotate(CheckLogProbs(sample.logprobs), absl::StrCat("group ", lease_.id.group.ToString())));
  }
  return std::move(group_);
}

absl::Status CheckLogProbs(absl::Span<const float> logprobs) {
  for (size_t i = 0; i < logprobs.size(); ++i) {
    // A bad value here would become a bad importance ratio in the trainer.
    if (IsPossibleLogProb(logprobs[i])) continue;
    return Error(absl::StatusCode::kInternal, "BAD_LOGPROB",
                 absl::StrCat("the log-probability of token ", i, " is ", logprobs[i],
                              "; the model overflows with these weights: look at train.learning_rate, or set "
                              "model.dtype=float32"));
  }
  return absl::OkStatus();
}

}  // namespace syncopate::rollouter
