#include "trainer/record/run_reporter.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/utf8.h"

namespace syncopate::trainer {
namespace {

using nlohmann::json;

constexpr size_t kRecentLines = 1000;
constexpr size_t kMaxShownBytes = 16 << 10;
constexpr size_t kMaxRewardParts = 32;  // of users' Python may be many

// Mismatch and rewards by staleness; ages without a token are left out. The last one stands for all above it.
json AgesJson(const StepFigures& figures) {
  json ages = json::array();
  for (int age = 0; age < loss::kLossAges; ++age) {
    const loss::LossFigures::Age& tokens = figures.ages[age];
    const int64_t samples = figures.samples_by_age[age];
    if (tokens.tokens == 0 && samples == 0) continue;
    json of_age = {{"age", age},      {"tokens", tokens.tokens},           {"k1", tokens.k1},
                   {"k3", tokens.k3}, {"rejected_ratio", tokens.rejected}, {"samples", samples}};
    // Mean reward of the samples whose oldest token is of this age.
    if (samples > 0) of_age["reward_mean"] = figures.reward_by_age[age] / static_cast<double>(samples);
    ages.push_back(std::move(of_age));
  }
  return ages;
}

// In the words of the table. A supervised step has neither rewards nor a behaviour policy: those figures are left out.
json StepJson(const StepReport& report) {
  json line = {{"kind", "step"},
               {"epoch", report.version.epoch},
               {"step", report.version.step},
               {"replay", report.is_replay},
               {"objective", report.supervised ? "sft" : "rl"},
               {"weights_digest", absl::StrFormat("%016x", report.weights_digest)},
               {"alarms", report.alarms}};
  if (report.published_digest.has_value()) {
    line["published_digest"] = absl::StrFormat("%016x", *report.published_digest);
  }
  if (report.held_out.has_value()) {
    line["held_out_loss"] = report.held_out->loss;
    line["held_out_tokens"] = report.held_out->tokens;
  }
  if (!report.supervised) line["ages"] = AgesJson(report.figures);
  for (const StepFigure& figure : StepFigureTable()) {
    if (report.supervised && IsOfRollouts(figure)) continue;
    const bool is_count = std::holds_alternative<int64_t StepFigures::*>(figure.member);
    const double value = FigureValue(report.figures, figure);
    line[figure.name] = is_count ? json(static_cast<int64_t>(value)) : json(value);
  }
  for (const auto& [part, mean] : ShownRewardParts(report)) line["reward_parts"][part] = mean;
  return line;
}

// Samples are for people: a long text is cut, at the end of a character.
std::string ShownText(const std::string& text) {
  if (text.size() <= kMaxShownBytes) return text;
  return text.substr(0, WellFormedPrefix(absl::string_view(text).substr(0, kMaxShownBytes))) + " ...";
}

// Returns an object with the figures of each subset under its name.
json SubsetsJson(const std::vector<EvaluationFigures::Subset>& subsets) {
  json named = json::object();
  for (const EvaluationFigures::Subset& one : subsets) {
    named[one.name] = {
        {"prompts", one.prompts}, {"reward", one.reward_mean}, {"response_tokens", one.response_tokens_mean}};
    if (one.turns_mean > 0) named[one.name]["turns"] = one.turns_mean;
  }
  return named;
}

json MeanJson(const MeanOverPrompts& mean) {
  return {{"mean", mean.mean}, {"interval", mean.interval.has_value() ? json(*mean.interval) : json()}};
}

// The figures of each of eval.sets, under its name.
json SetsJson(const std::vector<SampledFigures>& sets) {
  json named = json::object();
  for (const SampledFigures& one : sets) {
    json& set = named[one.name];
    set = {{"prompts", one.prompts},
           {"samples", one.samples},
           {"asked", one.asked},
           {"missing", one.missing},
           {"response_tokens_mean", one.response_tokens_mean},
           {"truncated_ratio", one.truncated_ratio}};
    if (one.reward.has_value()) set["reward"] = MeanJson(*one.reward);
    if (one.majority.has_value()) set["majority"] = MeanJson(*one.majority);
    for (const auto& [k, mean] : one.pass) set["pass"][absl::StrCat(k)] = MeanJson(mean);
  }
  return named;
}

json EvaluationJson(const EvaluationReport& report) {
  json line = {{"kind", "eval"},
               {"epoch", report.version.epoch},
               {"step", report.version.step},
               {"eval_reward", report.reward_mean},
               {"eval_prompts", report.prompts},
               {"eval_asked", report.asked},
               {"alarms", report.alarms},
               {"samples", json::array()}};
  if (report.exact.has_value()) line["eval_exact"] = *report.exact;
  const EvaluationFigures& figures = report.figures;
  line["eval_response_tokens_mean"] = figures.response_tokens_mean;
  line["eval_response_tokens_min"] = figures.response_tokens_min;
  line["eval_response_tokens_max"] = figures.response_tokens_max;
  line["eval_truncated"] = figures.truncated;
  if (!figures.reward_parts.empty()) line["eval_reward_parts"] = figures.reward_parts;
  if (!figures.files.empty()) line["eval_files"] = SubsetsJson(figures.files);
  if (!figures.data_sources.empty()) line["eval_data_sources"] = SubsetsJson(figures.data_sources);
  if (!figures.environments.empty()) line["eval_environments"] = SubsetsJson(figures.environments);
  if (figures.turns_mean > 0) line["eval_turns_mean"] = figures.turns_mean;
  if (!report.sets.empty()) line["eval_sets"] = SetsJson(report.sets);
  for (const EvaluationReport::Sample& sample : report.samples) {
    json shown = {{"prompt", ShownText(sample.prompt)},
                  {"answer", ShownText(sample.answer)},
                  {"expected", ShownText(sample.expected)}};
    if (std::isfinite(sample.reward)) shown["reward"] = sample.reward;
    if (!sample.question.empty()) shown["question"] = ShownText(sample.question);
    if (!sample.reply.empty()) shown["reply"] = ShownText(sample.reply);
    line["samples"].push_back(std::move(shown));
  }
  return line;
}

}  // namespace

std::map<std::string, double> ShownRewardParts(const StepReport& report) {
  std::map<std::string, double> parts;
  for (const auto& part : report.figures.reward_parts) {
    if (parts.size() < kMaxRewardParts) parts.insert(part);
  }
  return parts;
}

absl::StatusOr<std::unique_ptr<RunReporter>> RunReporter::Open(FileSystem* files, const std::string& path,
                                                               const Clock* clock) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto file, files->OpenForAppend(path, FileSystem::OpenMode::kOpenOrCreate));
  return std::unique_ptr<RunReporter>(new RunReporter(std::move(file), clock));
}

void RunReporter::RecordStep(const StepReport& report) {
  if (report.figures.skipped_updates > 0) {
    SYNCOPATE_LOG(kWarning, "%d updates of %s were skipped: loss or gradient were not finite",
                  report.figures.skipped_updates, report.version.ToString());
  }
  {
    MutexLock lock(&mutex_);
    figures_.step_seconds += report.figures.step_seconds;
    figures_.wait_seconds += report.figures.wait_seconds;
    if (report.held_out.has_value()) figures_.AddHeldOut(report.held_out->loss);
  }
  WriteLine(report.version.step, StepJson(report));
}

void RunReporter::RecordEvaluation(const EvaluationReport& report) {
  {
    MutexLock lock(&mutex_);
    figures_.AddEvaluation(report.reward_mean, report.exact);
  }
  WriteLine(report.version.step, EvaluationJson(report));
}

void RunReporter::CountCheckpoint(bool saved) {
  MutexLock lock(&mutex_);
  ++(saved ? figures_.saved_checkpoints : figures_.failed_checkpoints);
}

void RunReporter::CountLostEvaluation() {
  MutexLock lock(&mutex_);
  ++figures_.evaluations_lost;
}

void RunReporter::WriteLine(int64_t step, json line) {
  line["unix_seconds"] = clock_->UnixSeconds();
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
    lost_lines_ += written.ok() ? 0 : 1;
    recent_.push_back({step, text});
    if (recent_.size() > kRecentLines) recent_.pop_front();
    for (const auto& watcher : watchers_) watcher->untold.push_back({step, text});
    watchers = watchers_;
  }
  for (const auto& watcher : watchers) WriteToWatcher(watcher);
}

void RunReporter::WriteToWatcher(const std::shared_ptr<Watcher>& watcher) {
  {
    MutexLock lock(&mutex_);
    // Lines reach a watcher in order though several threads write: one of them tells at a time, and tells what others
    // add meanwhile. A listener is called without the lock, as it may call back.
    if (std::exchange(watcher->being_told, true))
      return;  // the thread that calls the listener now finds what was added
  }
  while (true) {
    std::optional<Line> line;
    {
      MutexLock lock(&mutex_);
      // The end comes after the last line.
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
  WriteToWatcher(watcher);
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
  for (const auto& watcher : watchers) WriteToWatcher(watcher);
}

int64_t RunReporter::lost_lines() const {
  MutexLock lock(&mutex_);
  return lost_lines_;
}

RunFigures RunReporter::figures() const {
  MutexLock lock(&mutex_);
  return figures_;
}

}  // namespace syncopate::trainer
