#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainer/data/evaluation.h"

namespace syncopate::trainer {

struct EvaluationOptions {
  int64_t prompts = 256;
  int64_t samples_shown = 4;
  uint64_t seed = 999;
  SamplingParams sampling;  // greedy: temperature 0
  std::vector<EvaluationSet> sets = {};
  SampleChoice recorded = {};
  // An evaluation under way for so long is over, with what has been answered. Infinite: it ends with its last answer.
  absl::Duration deadline = absl::InfiniteDuration();

  absl::Status Validate() const;  // INVALID_ARGUMENT (reason BAD_OPTIONS)
};

// The evaluations of one incarnation of a trainer, one at a time: starts one, says when it has ended and how.
// Sans-IO, as GroupLedger.
class EvaluationSeries {
 public:
  // What all of them have in common. `prompts` is borrowed and must outlive this.
  struct Common {
    EvaluationOptions options;
    std::string reward = "dense";
    LeaseLimits lease_limits = {};
    const PromptSource* prompts = nullptr;
  };
  explicit EvaluationSeries(Common common) : common_(std::move(common)) {}

  // Replaces one that has not ended.
  void Start(const PolicyVersion& version, absl::Time now);
  // Whether TakeResult gives a result or a final error.
  bool HasEnded(const RolloutSessions& sessions, absl::Time now) const;
  // The result of the evaluation under way, which is over after that. DEADLINE_EXCEEDED (reason EVALUATING) if prompts
  // are still to be answered: it goes on; ABORTED (reason OVERTAKEN) if every rollouter serves a newer version, or
  // (reason UNANSWERED) if nothing was answered by the deadline: it is over; FAILED_PRECONDITION (reason
  // NO_EVALUATION).
  absl::StatusOr<EvaluationResult> TakeResult(const RolloutSessions& sessions, absl::Time now);
  // Whether an evaluation is under way and a rollouter serves its version.
  bool IsServed(const RolloutSessions& sessions) const;

  // The evaluation under way; null if there is none.
  Evaluation* current() { return current_.has_value() ? &*current_ : nullptr; }
  const Evaluation* current() const { return current_.has_value() ? &*current_ : nullptr; }
  absl::Time since() const { return since_; }  // when the newest was started

 private:
  const Common common_;
  std::optional<Evaluation> current_;
  int64_t started_ = 0;
  absl::Time since_;
};

}  // namespace syncopate::trainer
