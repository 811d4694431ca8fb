#include "services/trainer/run_reporter.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/log.h"

namespace syncopate::trainerd {
namespace {

using nlohmann::json;

constexpr size_t kRecentLines = 1000;

// Mismatch and rewards by staleness; ages without a token are left out. The last one stands for all above it.
json AgesJson(const trainer::TrainStepMetrics& metrics) {
  json ages = json::array();
  for (int age = 0; age < loss::kLossAges; ++age) {
    const loss::LossFigures::Age& tokens = metrics.figures.ages[age];
    const int64_t samples = metrics.data.samples_by_age[age];
    if (tokens.tokens == 0 && samples == 0) continue;
    json of_age = {{"age", age},
                   {"tokens", tokens.tokens},
                   {"k1", tokens.k1},
                   {"k3", tokens.k3},
                   {"rejected_fraction", tokens.rejected},
                   {"samples", samples}};
    // Of samples whose oldest token is of this age.
    if (samples > 0) of_age["reward_mean"] = metrics.data.reward_by_age[age] / static_cast<double>(samples);
    ages.push_back(std::move(of_age));
  }
  return ages;
}

// What algorithms are watched by, beside what every step reports: docs/training.md.
json FiguresJson(const trainer::TrainStepMetrics& metrics) {
  const loss::LossFigures& figures = metrics.figures;
  const loss::DataFigures& data = metrics.data;
  return {{"clipped_low", figures.clipped_low},
          {"clipped_high", figures.clipped_high},
          {"dual_clipped", figures.dual_clipped},
          {"ratio_kl", figures.ratio_kl},
          {"rejected_low", figures.rejected_low},
          {"rejected_high", figures.rejected_high},
          {"weight_mean", figures.weight_mean},
          {"weight_std", figures.weight_std},
          {"weight_min", figures.weight_min},
          {"weight_max", figures.weight_max},
          {"effective_answer_fraction", figures.effective_answer_fraction},
          {"mismatch_k1", figures.mismatch_k1},
          {"mismatch_max", figures.mismatch_max},
          {"chi2_token", figures.chi2_token},
          {"chi2_answer", figures.chi2_answer},
          {"perplexity_ratio", figures.perplexity_ratio},
          {"log_perplexity_gap", figures.log_perplexity_gap},
          {"probability_correlation", figures.probability_correlation},
          {"reference_kl", figures.reference_kl},
          {"truncated_samples", data.truncated},
          {"masked_samples", data.masked},
          {"trained_token_fraction", data.tokens > 0 ? data.trained_tokens / data.tokens : 0},
          {"ages", AgesJson(metrics)}};
}

json StepJson(const trainer::StepReport& report) {
  const trainer::TrainStepMetrics& metrics = report.metrics;
  return {{"kind", "step"},
          {"epoch", report.version.epoch},
          {"step", report.version.step},
          {"replay", report.is_replay},
          {"reward_mean", metrics.reward_mean},
          {"reward_std", metrics.reward_std},
          {"reward_max", metrics.reward_max},
          {"updates", metrics.updates},
          {"skipped_updates", metrics.skipped},
          {"loss", metrics.loss},
          {"grad_norm", metrics.gradient_norm},
          {"entropy", metrics.entropy},
          {"zero_variance", metrics.zero_variance_fraction},
          {"clip_fraction", metrics.clip_fraction},
          {"rejected_fraction", metrics.rejected_fraction},
          {"mismatch_k3", metrics.mismatch_k3},
          {"ratio_max", metrics.ratio_max},
          {"effective_sample_fraction", metrics.effective_sample_fraction},
          {"tokens", metrics.tokens},
          {"sequences", metrics.sequences},
          {"response_tokens_mean", metrics.mean_response_tokens},
          {"staleness_mean", report.staleness.Mean()},
          {"staleness_max", report.staleness.Max()},
          {"step_seconds", report.step_seconds},
          {"wait_seconds", report.wait_seconds},
          {"forward_backward_seconds", metrics.forward_backward_seconds},
          {"optimizer_seconds", metrics.optimizer_seconds},
          {"proximal_seconds", metrics.proximal_seconds},
          {"stage_seconds", report.stage_seconds},
          {"weights_digest", absl::StrFormat("%016x", report.weights_digest)},
          {"alarms", report.alarms}};
}

json EvaluationJson(const trainer::EvaluationReport& report) {
  json line = {{"kind", "eval"},
               {"epoch", report.version.epoch},
               {"step", report.version.step},
               {"eval_exact", report.exact},
               {"eval_reward", report.reward_mean},
               {"eval_prompts", report.prompts},
               {"alarms", report.alarms},
               {"samples", json::array()}};
  for (const trainer::EvaluationReport::Sample& sample : report.samples) {
    line["samples"].push_back({{"prompt", sample.prompt}, {"answer", sample.answer}, {"expected", sample.expected}});
  }
  return line;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunReporter>> RunReporter::Open(FileSystem* files, const std::string& path) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto file, files->OpenForAppend(path, FileSystem::OpenMode::kOpenOrCreate));
  return std::unique_ptr<RunReporter>(new RunReporter(std::move(file)));
}

void RunReporter::RecordStep(const trainer::StepReport& report) {
  if (report.metrics.skipped > 0) {
    SYNCOPATE_LOG(kWarning, "%d updates of %s were skipped: loss or gradient were not finite", report.metrics.skipped,
                  report.version.ToString());
  }
  {
    MutexLock lock(&mutex_);
    figures_.step_seconds += report.step_seconds;
    figures_.wait_seconds += report.wait_seconds;
  }
  json line = StepJson(report);
  line.update(FiguresJson(report.metrics));
  WriteLine(report.version.step, line);
}

void RunReporter::RecordEvaluation(const trainer::EvaluationReport& report) {
  {
    MutexLock lock(&mutex_);
    figures_.best_exact = std::max(figures_.best_exact.value_or(report.exact), report.exact);
    figures_.last_exact = report.exact;
  }
  WriteLine(report.version.step, EvaluationJson(report));
}

void RunReporter::WriteLine(int64_t step, const json& line) {
  // Tokens that are no text cannot make a report fail: bytes that are not UTF-8 are replaced.
  const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace);
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(&mutex_);
    const int64_t before = file_->size();
    absl::Status written = file_->Append(text + "\n");
    if (!written.ok()) file_->Truncate(before).IgnoreError();  // half a line would spoil the next one
    if (!written.ok() && !write_failed_) {
      SYNCOPATE_LOG(kError, "metrics.jsonl loses lines: %s", written.ToString());
    }
    write_failed_ = !written.ok();
    recent_.push_back({step, text});
    if (recent_.size() > kRecentLines) recent_.pop_front();
    for (const auto& watcher : watchers_) watcher->untold.push_back({step, text});
    watchers = watchers_;
  }
  for (const auto& watcher : watchers) Tell(watcher);
}

void RunReporter::Tell(const std::shared_ptr<Watcher>& watcher) {
  {
    MutexLock lock(&mutex_);
    if (std::exchange(watcher->being_told, true)) return;  // who does so now will find what was added
  }
  while (true) {
    std::optional<Line> line;
    {
      MutexLock lock(&mutex_);
      const bool ends = watcher->untold.empty() && std::exchange(watcher->end_untold, false);
      if (watcher->gone || (watcher->untold.empty() && !ends)) {
        watcher->being_told = false;
        return;
      }
      if (!ends) {
        line = std::move(watcher->untold.front());
        watcher->untold.pop_front();
      }
    }
    if (line.has_value()) {
      watcher->listener.on_line(line->step, line->text);
    } else {
      watcher->listener.on_end();
    }
  }
}

std::function<void()> RunReporter::Watch(size_t last, Listener listener) {
  auto watcher = std::make_shared<Watcher>();
  watcher->listener = std::move(listener);
  {
    MutexLock lock(&mutex_);
    const auto count = static_cast<int64_t>(std::min(last, recent_.size()));
    watcher->untold.assign(recent_.end() - count, recent_.end());
    watcher->end_untold = ended_;
    watchers_.push_back(watcher);
  }
  Tell(watcher);
  return [this, watcher] {
    MutexLock lock(&mutex_);
    watcher->gone = true;
    watchers_.erase(std::remove(watchers_.begin(), watchers_.end(), watcher), watchers_.end());
  };
}

void RunReporter::End() {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(&mutex_);
    if (std::exchange(ended_, true)) return;
    for (const auto& watcher : watchers_) watcher->end_untold = true;
    watchers = watchers_;
  }
  for (const auto& watcher : watchers) Tell(watcher);
}

trainer::RunFigures RunReporter::figures() const {
  MutexLock lock(&mutex_);
  return figures_;
}

}  // namespace syncopate::trainerd
