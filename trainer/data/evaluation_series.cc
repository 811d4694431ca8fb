#include "trainer/data/evaluation_series.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::trainer {

absl::Status EvaluationOptions::Validate() const {
  auto bad = [](const std::string& text) { return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", text); };
  if (prompts < 1) return bad("an evaluation has at least 1 prompt");
  if (samples_shown < 0) return bad("samples_shown of an evaluation cannot be negative");
  if (sampling.temperature != 0) return bad("evaluation is greedy: its temperature is 0");
  if (sampling.max_new_tokens < 1) return bad("max_new_tokens of an evaluation must be at least 1");
  if (deadline <= absl::ZeroDuration()) return bad("the deadline of an evaluation must be positive");
  for (const EvaluationSet& set : sets) {
    if (set.source == nullptr || set.prompts < 1 || set.samples < 1 || set.sampling.max_new_tokens < 1) {
      return bad(absl::StrCat("evaluation set ", set.name, " needs prompts, samples and tokens, of each at least 1"));
    }
  }
  return absl::OkStatus();
}

void EvaluationSeries::Start(const PolicyVersion& version, absl::Time now) {
  current_.emplace(Evaluation::Options{.index = started_++,
                                       .version = version,
                                       .prompts = common_.options.prompts,
                                       .show_samples = common_.options.samples_shown,
                                       .reward = common_.reward,
                                       .sampling = common_.options.sampling,
                                       .seed = common_.options.seed,
                                       .lease_limits = common_.lease_limits,
                                       .sets = common_.options.sets,
                                       .recorded = common_.options.recorded},
                   common_.prompts);
  since_ = now;
}

bool EvaluationSeries::HasEnded(const RolloutSessions& sessions, absl::Time now) const {
  return !current_.has_value() || current_->done() || current_->IsOvertaken(sessions) ||
         now - since_ >= common_.options.deadline;
}

absl::StatusOr<EvaluationResult> EvaluationSeries::TakeResult(const RolloutSessions& sessions, absl::Time now) {
  if (!current_.has_value()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_EVALUATION", "no evaluation was started");
  }
  if (!HasEnded(sessions, now)) {
    return Error(absl::StatusCode::kDeadlineExceeded, "EVALUATING",
                 absl::StrCat(current_->answered(), " of ", current_->asked(), " prompts are answered"));
  }
  // No rollouter is left that could score a row whose reward has failed. One such row must not cost the others'
  // results.
  const bool overtaken = current_->IsOvertaken(sessions);
  if (overtaken) current_->LeaveOutFailed();
  const bool done = current_->done();
  EvaluationResult result = current_->Result();
  const int64_t answered = current_->answered();
  current_.reset();
  if (done) return result;
  if (!overtaken && answered > 0) return result;  // its time is up: the rest is missing
  if (!overtaken) {
    return Error(absl::StatusCode::kAborted, "UNANSWERED",
                 absl::StrCat("no prompt of the evaluation of ", result.version.ToString(), " was answered within ",
                              absl::FormatDuration(common_.options.deadline)));
  }
  return Error(absl::StatusCode::kAborted, reason::kOvertaken,
               absl::StrCat("every rollouter serves a newer version than ", result.version.ToString(), "; ",
                            result.prompts, " prompts had been answered"));
}

bool EvaluationSeries::IsServed(const RolloutSessions& sessions) const {
  return current_.has_value() && current_->IsServed(sessions);
}

}  // namespace syncopate::trainer
