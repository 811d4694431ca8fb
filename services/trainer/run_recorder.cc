#include "services/trainer/run_recorder.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"

namespace syncopate::trainerd {
namespace {

std::vector<double> MismatchByAge(const trainer::TrainStepMetrics& metrics) {
  std::vector<double> by_age;
  for (const loss::LossFigures::Age& age : metrics.figures.ages) by_age.push_back(age.k3);
  return by_age;
}

telemetry::StepFigures FiguresOf(const trainer::StepReport& report) {
  return {.version = report.version,
          .loss = report.metrics.loss,
          .reward_mean = report.metrics.reward_mean,
          .reward_std = report.metrics.reward_std,
          .kl = report.metrics.mismatch_k3,
          .entropy = report.metrics.entropy,
          .grad_norm = report.metrics.gradient_norm,
          .clipped = report.metrics.clip_fraction,
          .rejected = report.metrics.rejected_fraction,
          .zero_variance = report.metrics.zero_variance_fraction,
          .effective_samples = report.metrics.effective_sample_fraction,
          .mismatch_by_age = MismatchByAge(report.metrics),
          .response_tokens = report.metrics.mean_response_tokens,
          .tokens = report.metrics.tokens,
          .skipped_updates = report.metrics.skipped};
}

}  // namespace

void RunRecorder::RecordStep(const trainer::StepReport& report) {
  metrics_->RecordStep(FiguresOf(report));
  metrics_->CountBoundViolations(report.staleness.violating_groups);
  for (const int64_t staleness : report.sample_staleness) metrics_->ObserveStaleness(staleness);
  metrics_->SetLearningAlarms(report.alarms);
  events_->Record({"step",
                   report.version,
                   0,
                   {{"groups", absl::StrCat(report.groups)},
                    {"tokens", absl::StrCat(report.metrics.tokens)},
                    {"reward", absl::StrCat(report.metrics.reward_mean)},
                    {"replay", report.is_replay ? "true" : "false"}}});
  reporter_->RecordStep(report);
}

void RunRecorder::RecordEvaluation(const trainer::EvaluationReport& report) {
  metrics_->RecordEvaluation(report.exact, report.reward_mean, report.best_reward_mean);
  metrics_->SetLearningAlarms(report.alarms);
  events_->Record({"evaluation", report.version, 0, {{"exact", absl::StrCat(report.exact)}}});
  reporter_->RecordEvaluation(report);
}

void RunRecorder::RecordPublication(const PolicyVersion& version, uint64_t digest, double stage_seconds) {
  events_->Record({"publish",
                   version,
                   0,
                   {{"digest", absl::StrFormat("%016x", digest)}, {"stage_seconds", absl::StrCat(stage_seconds)}}});
}

void RunRecorder::RecordCheckpoint(const PolicyVersion& version, const absl::Status& saved) {
  metrics_->RecordCheckpoint(saved.ok(), Clock::Real()->UnixSeconds());
  if (saved.ok()) events_->Record({"checkpoint", version});
}

void RunRecorder::AddPhase(trainer::LoopPhase phase, double seconds) {
  metrics_->AddPhase(trainer::LoopPhaseName(phase), seconds);
}

}  // namespace syncopate::trainerd
