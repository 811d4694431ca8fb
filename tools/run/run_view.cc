#include "tools/run/run_view.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/console/text_table.h"
#include "base/console/words.h"

namespace syncopate::run {
namespace {

constexpr size_t kRecentSteps = 20;
constexpr size_t kMaxSampleText = 60;
constexpr char kBetweenFigures[] = "   ";

std::string RewardLine(const RunView& view) {
  const records::StepRecord& step = *view.steps.last_step();
  std::string line = step.supervised ? absl::StrFormat("supervised loss %.4f", step.figures.loss)
                                     : absl::StrFormat("reward %.3f", step.figures.reward_mean);
  if (const auto& best = view.steps.best_evaluation(); best.has_value()) {
    absl::StrAppend(&line, kBetweenFigures, records::EvaluationText(*view.steps.last_evaluation()));
    absl::StrAppendFormat(&line, " (best %.3f at step %d)", best->eval_reward.value_or(0), best->step);
  }
  return line +
         absl::StrFormat("   entropy %.2f   gradient norm %.2f", step.figures.entropy, step.figures.gradient_norm);
}

std::string StalenessLine(const RunView& view) {
  const records::StepRecord& step = *view.steps.last_step();
  std::string line =
      absl::StrFormat("staleness %.2f mean, %d max", step.figures.staleness_mean, step.figures.staleness_max);
  if (view.syncs.ok + view.syncs.failed == 0) return line;
  absl::StrAppend(&line, "   sync ", Milliseconds(view.syncs.median_seconds), " median, ",
                  Milliseconds(view.syncs.last_seconds), " last, ", Thousands(view.syncs.ok), " ok");
  if (view.syncs.failed > 0) absl::StrAppend(&line, ", ", Thousands(view.syncs.failed), " failed");
  return absl::StrCat(line, "   pause ", Milliseconds(view.syncs.median_pause_seconds));
}

std::string Daemons(const RunView& view) {
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"DAEMON"},
                   {"STATE"},
                   {"PID", kRight},
                   {"VERSION"},
                   {"GROUPS", kRight},
                   {"TOKENS/S", kRight},
                   {"IDLE", kRight},
                   {"RESTARTS", kRight}});
  for (const DaemonRow& row : view.daemons) {
    // It generates nothing and trains nothing.
    bool works = row.name.rfind("synchronizer", 0) != 0;
    table.AddRow({row.name, row.state, row.pid == 0 ? "-" : absl::StrCat(row.pid), row.version,
                  works ? Thousands(row.groups) : "", works ? Thousands(std::llround(row.tokens_per_second)) : "",
                  works ? Percent(row.idle) : "", absl::StrCat(row.restarts)});
  }
  return table.ToString();
}

// `line` in lines of at most `width`, as far as it can be broken where `between` stands.
std::vector<std::string> Wrapped(const std::string& line, const std::string& between, size_t width) {
  std::vector<std::string> lines;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(line, between))) {
    const bool fits = !lines.empty() && lines.back().size() + between.size() + part.size() <= width;
    if (fits) absl::StrAppend(&lines.back(), between, part);
    if (!fits) lines.push_back(part);
  }
  return lines;
}

std::string Shortened(const std::string& text) {
  return text.size() <= kMaxSampleText ? text : text.substr(0, kMaxSampleText - 3) + "...";
}

}  // namespace

void StepFigures::Add(const records::StepRecord& record) {
  alarms_ = record.alarms;
  if (record.is_evaluation) {
    last_evaluation_ = record;
    const bool is_best =
        !best_evaluation_.has_value() || record.eval_reward.value_or(0) > best_evaluation_->eval_reward.value_or(0);
    if (is_best) best_evaluation_ = record;
    return;
  }
  last_step_ = record;
  recent_.push_back(record);
  if (recent_.size() > kRecentSteps) recent_.pop_front();
}

double StepFigures::TokensPerSecond() const {
  double tokens = 0, seconds = 0;
  for (const records::StepRecord& step : recent_) {
    tokens += static_cast<double>(step.figures.trained_tokens);
    seconds += step.figures.step_seconds;
  }
  return Share(tokens, seconds);
}

double StepFigures::Idle() const {
  double waited = 0, seconds = 0;
  for (const records::StepRecord& step : recent_) {
    waited += step.figures.wait_seconds;
    seconds += step.figures.step_seconds;
  }
  return Share(waited, seconds);
}

std::vector<std::string> RenderTable(const RunView& view, size_t width) {
  int64_t step = view.steps.last_step().has_value() ? view.steps.last_step()->step : 0;
  std::vector<std::string> lines = {
      "", absl::StrFormat("%s   step %d of %d   %s", view.name, step, view.steps_total, Clocked(view.elapsed_seconds))};
  const auto append = [&lines](const std::vector<std::string>& more) {
    lines.insert(lines.end(), more.begin(), more.end());
  };
  if (view.steps.last_step().has_value()) {
    append(Wrapped(RewardLine(view), kBetweenFigures, width));
    append(Wrapped(StalenessLine(view), kBetweenFigures, width));
    if (!view.steps.alarms().empty()) append(Wrapped(records::ToString(view.steps.alarms()), " ", width));
  }
  append(absl::StrSplit(Daemons(view), '\n', absl::SkipEmpty()));
  if (!view.waiting.empty()) append(Wrapped(view.waiting, " ", width));
  // What the trainer waits for may be what must be mended.
  if (!view.alarm.empty() && view.alarm != view.waiting) append(Wrapped(view.alarm, " ", width));
  if (!view.reward_failure.empty()) append(Wrapped(view.reward_failure, " ", width));
  for (std::string& line : lines) line.resize(std::min(line.size(), width));
  return lines;
}

std::vector<std::string> RenderSamples(const records::StepRecord& evaluation) {
  std::vector<std::string> lines;
  for (const records::SampleAnswer& sample : evaluation.samples) {
    std::string line = absl::StrCat("  ", Shortened(sample.prompt), "  ", Shortened(sample.answer));
    // A text may be right without being the one that is expected: its reward says so.
    const bool is_right = !sample.expected.empty() && sample.answer == sample.expected;
    if (is_right) absl::StrAppend(&line, "   right");
    if (!is_right && sample.reward.has_value()) absl::StrAppendFormat(&line, "   reward %.3g", *sample.reward);
    if (!is_right && !sample.expected.empty()) absl::StrAppend(&line, "   expected ", Shortened(sample.expected));
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace syncopate::run
