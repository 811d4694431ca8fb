#include "services/trainer/run_recorder.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"

namespace syncopate::trainerd {
namespace {

std::vector<double> MismatchByAge(const trainer::StepFigures& figures) {
  std::vector<double> by_age;
  for (const loss::LossFigures::Age& age : figures.ages) by_age.push_back(age.k3);
  return by_age;
}

using Scalars = std::vector<trainer::TensorBoardFile::Scalar>;

Scalars StepScalars(const trainer::StepReport& report) {
  Scalars scalars;
  for (const trainer::StepFigure& figure : trainer::StepFigureTable()) {
    if (report.supervised && trainer::IsOfRollouts(figure)) continue;  // a zero in a chart would read as a result
    scalars.push_back({absl::StrCat(figure.group, "/", figure.name), trainer::FigureValue(report.figures, figure)});
  }
  if (report.held_out.has_value()) scalars.push_back({"evaluation/held_out_loss", report.held_out->loss});
  for (const auto& [part, mean] : trainer::ShownRewardParts(report)) scalars.push_back({"reward_parts/" + part, mean});
  return scalars;
}

Scalars EvaluationScalars(const trainer::EvaluationReport& report) {
  const trainer::EvaluationFigures& figures = report.figures;
  Scalars scalars = {{"evaluation/reward_mean", report.reward_mean},
                     {"evaluation/response_tokens_mean", figures.response_tokens_mean},
                     {"evaluation/response_tokens_min", static_cast<double>(figures.response_tokens_min)},
                     {"evaluation/response_tokens_max", static_cast<double>(figures.response_tokens_max)},
                     {"evaluation/truncated", static_cast<double>(figures.truncated)}};
  if (report.exact.has_value()) scalars.push_back({"evaluation/exact", *report.exact});
  for (const auto& [part, mean] : figures.reward_parts) scalars.push_back({"evaluation_parts/" + part, mean});
  for (const auto& one : figures.files) scalars.push_back({"evaluation_files/" + one.name, one.reward_mean});
  if (figures.turns_mean > 0) scalars.push_back({"evaluation/turns_mean", figures.turns_mean});
  for (const auto& one : figures.data_sources) {
    scalars.push_back({"evaluation_data_sources/" + one.name, one.reward_mean});
  }
  for (const auto& one : figures.environments) {
    const std::string environment = absl::StrCat("evaluation_environments/", one.name, "/");
    scalars.push_back({environment + "reward_mean", one.reward_mean});
    scalars.push_back({environment + "turns_mean", one.turns_mean});
    scalars.push_back({environment + "response_tokens_mean", one.response_tokens_mean});
  }
  for (const trainer::SampledFigures& one : report.sets) {
    const std::string set = absl::StrCat("evaluation_sets/", one.name, "/");
    if (one.reward.has_value()) scalars.push_back({set + "reward_mean", one.reward->mean});
    if (one.majority.has_value()) scalars.push_back({set + "majority", one.majority->mean});
    for (const auto& [k, mean] : one.pass) scalars.push_back({absl::StrCat(set, "pass_at_", k), mean.mean});
    scalars.push_back({set + "truncated_ratio", one.truncated_ratio});
    scalars.push_back({set + "missing", static_cast<double>(one.missing)});
  }
  return scalars;
}

}  // namespace

// Rollouters report their work a few times a second, which may be less often than steps are made. Until new reports
// arrive, the previous share is returned.
double RunRecorder::RolloutersIdle() {
  if (work_ == nullptr) return 0;
  const trainer::RolloutRoster::Work now = work_();
  const double idle = now.idle_seconds - work_before_.idle_seconds;
  const double busy = now.busy_seconds - work_before_.busy_seconds;
  // The sums of a rollouter that left are gone, so the difference may be negative.
  if (idle >= 0 && busy >= 0 && idle + busy > 0) rollouters_idle_ = idle / (idle + busy);
  work_before_ = now;
  return rollouters_idle_;
}

void RunRecorder::CountLostRecords() {
  metrics_->SetLostRecords("metrics.jsonl", reporter_->lost_lines());
  if (tensorboard_ != nullptr) metrics_->SetLostRecords("tensorboard", tensorboard_->lost());
  if (samples_ != nullptr) metrics_->SetLostRecords("samples.jsonl", samples_->lost());
}

void RunRecorder::RecordStep(const trainer::StepReport& made) {
  trainer::StepReport report = made;
  trainer::StepFigures& figures = report.figures;
  figures.rollouters_idle_ratio = RolloutersIdle();
  AddSendBytes(&figures);
  metrics_->RecordStep(report.version, figures, MismatchByAge(figures));
  if (report.held_out.has_value()) metrics_->SetHeldOutLoss(report.held_out->loss);
  metrics_->CountBoundViolations(report.staleness.violating_groups);
  for (const int64_t staleness : report.sample_staleness) metrics_->ObserveStaleness(staleness);
  metrics_->SetLearningAlarms(report.alarms);
  events_->Record({"step",
                   report.version,
                   0,
                   {{"groups", absl::StrCat(report.groups)},
                    {"tokens", absl::StrCat(figures.trained_tokens)},
                    {"reward", absl::StrCat(figures.reward_mean)},
                    {"replay", report.is_replay ? "true" : "false"}}});
  reporter_->RecordStep(report);
  if (tensorboard_ != nullptr) tensorboard_->Write(report.version.step, StepScalars(report));
  if (samples_ != nullptr) samples_->RecordStep(report);
  CountLostRecords();
}

void RunRecorder::RecordEvaluation(const trainer::EvaluationReport& report) {
  metrics_->RecordEvaluation(report.reward_mean, report.exact, report.best_reward_mean);
  metrics_->SetLearningAlarms(report.alarms);
  std::map<std::string, std::string> fields = {{"reward", absl::StrCat(report.reward_mean)}};
  if (report.exact.has_value()) fields["exact"] = absl::StrCat(*report.exact);
  events_->Record({"evaluation", report.version, 0, std::move(fields)});
  reporter_->RecordEvaluation(report);
  if (tensorboard_ != nullptr) tensorboard_->Write(report.version.step, EvaluationScalars(report));
  if (samples_ != nullptr) samples_->RecordEvaluation(report);
  CountLostRecords();
}

void RunRecorder::RecordLostEvaluation(const PolicyVersion& version) {
  metrics_->CountLostEvaluation();
  events_->Record({"evaluation_lost", version});
  reporter_->CountLostEvaluation();
}

void RunRecorder::RecordPublication(const PolicyVersion& version, uint64_t digest, double stage_seconds) {
  events_->Record({"publish",
                   version,
                   0,
                   {{"digest", absl::StrFormat("%016x", digest)}, {"stage_seconds", absl::StrCat(stage_seconds)}}});
}

void RunRecorder::RecordCheckpoint(const PolicyVersion& version, const absl::Status& saved) {
  reporter_->CountCheckpoint(saved.ok());
  metrics_->RecordCheckpoint(saved.ok(), Clock::Real()->UnixSeconds());
  if (saved.ok()) events_->Record({"checkpoint", version});
}

void RunRecorder::AddPhase(trainer::LoopPhase phase, double seconds) {
  metrics_->AddPhase(trainer::LoopPhaseName(phase), seconds);
}

void RunRecorder::RecordMemory(const trainer::PolicyMemory& memory) {
  trainer::StepFigures figures;
  trainer::SetMemory(memory, &figures);
  AddSendBytes(&figures);
  metrics_->ShowMemory(figures);
}

void RunRecorder::AddSendBytes(trainer::StepFigures* figures) const {
  // The send arena is outside the allocator, and is device memory too.
  figures->memory_allocated_bytes += send_bytes_;
  figures->memory_reserved_bytes += send_bytes_;
}

}  // namespace syncopate::trainerd
