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

}  // namespace

void RunRecorder::RecordStep(const trainer::StepReport& report) {
  metrics_->RecordStep(report.version, MakeStepFigures(report), MismatchByAge(report.metrics));
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
