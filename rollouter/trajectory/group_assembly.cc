#include "rollouter/trajectory/group_assembly.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"

namespace syncopate::rollouter {
namespace {

bool IsGenerated(const Lease& lease, int32_t sample) {
  return lease.starts.empty() || !lease.starts[static_cast<size_t>(sample)].finish.has_value();
}

}  // namespace

GenerationRequest RequestFor(const Lease& lease, const std::string& id) {
  GenerationRequest request;
  request.id = id;
  request.prompt_ids = lease.prompt_ids;
  request.sampling = lease.sampling;
  for (int32_t i = 0; i < lease.samples; ++i) {
    if (!IsGenerated(lease, i)) continue;
    request.seeds.push_back(SampleSeed(lease.seed, i));
    if (!lease.starts.empty()) request.starts.push_back(lease.starts[static_cast<size_t>(i)].tokens);
  }
  // Only evaluation needs one version; training groups may continue across an install.
  request.holds_install = lease.kind == LeaseKind::kEvaluation;
  return request;
}

void TakeOffStarts(const Lease& lease, TrajectoryGroup* group) {
  for (size_t i = 0; i < lease.starts.size(); ++i) {
    const auto begun = static_cast<int64_t>(lease.starts[i].tokens.size());
    Trajectory& sample = group->samples[i];
    sample.tokens.erase(sample.tokens.begin(), sample.tokens.begin() + begun);
    sample.logprobs.erase(sample.logprobs.begin(), sample.logprobs.begin() + begun);
  }
}

GroupAssembly::GroupAssembly(Lease lease, const MemberId& member, Done done, std::shared_ptr<TokenCount> made,
                             const StopRules* stops, std::shared_ptr<AnswerReports> reports)
    : lease_(std::move(lease)),
      done_(std::move(done)),
      made_(std::move(made)),
      reports_(std::move(reports)),
      stops_(stops, lease_.samples) {
  group_.lease = lease_.id;
  group_.kind = lease_.kind;
  group_.rollouter = member.replica_id;
  group_.incarnation = member.incarnation;
  group_.prompt_ids = lease_.prompt_ids;
  group_.samples.resize(static_cast<size_t>(lease_.samples));
  for (int32_t i = 0; i < lease_.samples; ++i) {
    if (IsGenerated(lease_, i)) generated_.push_back(i);
    if (lease_.starts.empty()) continue;
    const AnswerStart& start = lease_.starts[static_cast<size_t>(i)];
    // None of them completes a stop, or the sample would be finished.
    for (int32_t token : start.tokens) stops_.Completes(i, token);
    if (!start.finish.has_value()) continue;
    Trajectory& sample = group_.samples[static_cast<size_t>(i)];
    sample.tokens = start.tokens;
    sample.logprobs.resize(start.tokens.size(), 0.0f);
    sample.finish = *start.finish;
  }
  missing_ = static_cast<int32_t>(generated_.size());
}

bool GroupAssembly::DeliverIfFinished() {
  if (missing_ > 0) return false;
  done_(Finish());
  return true;
}

bool GroupAssembly::OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion& version,
                            const std::vector<TokenLogProb>& /*top*/) {
  made_->fetch_add(1, std::memory_order_relaxed);
  const int32_t in_group = generated_[static_cast<size_t>(sample)];
  if (reports_ != nullptr) reports_->OnToken(in_group, token, logprob, version);
  return !stops_.Completes(in_group, token);
}

void GroupAssembly::OnFinished(int32_t sample, Trajectory trajectory) {
  const int32_t in_group = generated_[static_cast<size_t>(sample)];
  if (reports_ != nullptr) reports_->OnFinished(in_group, trajectory.finish);
  // To the engine a start is given; here it is what an earlier lease has made.
  if (!lease_.starts.empty()) trajectory.given.clear();
  group_.samples[static_cast<size_t>(in_group)] = std::move(trajectory);
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
