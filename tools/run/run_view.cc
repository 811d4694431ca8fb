#include "tools/run/run_view.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/console/text_table.h"
#include "base/console/words.h"
#include "base/utf8.h"

namespace syncopate::run {
namespace {

constexpr size_t kRecentSteps = 20;
constexpr size_t kMaxSampleText = 60;     // characters
constexpr size_t kMaxSampleBytes = 4096;  // searched for those characters
constexpr char kBetweenFigures[] = "   ";

std::string RewardLine(const RunView& view) {
  const records::StepRecord& step = *view.steps.last_step();
  std::string line = step.supervised ? absl::StrFormat("supervised loss %.4f", step.figures.loss)
                                     : absl::StrFormat("reward %.3f", step.figures.reward_mean);
  if (const auto& evaluation = view.steps.last_evaluation(); evaluation.has_value()) {
    absl::StrAppend(&line, kBetweenFigures, records::EvaluationText(*evaluation));
  }
  const CheckpointFigures& checkpoints = view.checkpoints;
  if (!checkpoints.best.empty()) {
    absl::StrAppendFormat(&line, "   best %.3f in %s", checkpoints.best_reward, checkpoints.best);
  }
  return line + absl::StrFormat("   entropy %.2f   gradient norm %.2f   learning rate %.3g", step.figures.entropy,
                                step.figures.gradient_norm, step.figures.learning_rate);
}

std::string TimeLeft(const RunView& view) {
  std::optional<double> left = view.steps.SecondsLeft(view.steps_total);
  if (view.seconds_limit.has_value()) {
    const double until = std::max(0.0, *view.seconds_limit - view.elapsed_seconds);
    left = std::min(left.value_or(until), until);
  }
  return left.has_value() ? absl::StrCat(kBetweenFigures, "about ", Clocked(*left), " left") : "";
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
    // The synchronizer neither generates nor trains.
    bool works = row.name.rfind("synchronizer", 0) != 0;
    table.AddRow({row.name, row.state, row.pid == 0 ? "-" : absl::StrCat(row.pid), row.version,
                  works ? Thousands(row.groups) : "", works ? Thousands(std::llround(row.tokens_per_second)) : "",
                  works ? Percent(row.idle) : "", absl::StrCat(row.restarts)});
  }
  return table.ToString();
}

// Splits `line` into lines of at most `width`, as far as it can be broken at `between`.
std::vector<std::string> Wrapped(const std::string& line, const std::string& between, size_t width) {
  std::vector<std::string> lines;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(line, between))) {
    const bool fits = !lines.empty() && lines.back().size() + between.size() + part.size() <= width;
    if (fits) absl::StrAppend(&lines.back(), between, part);
    if (!fits) lines.push_back(part);
  }
  return lines;
}

// Whether a character ends a line, controls a terminal, or turns the text direction: a model may answer with it.
bool IsControl(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029 ||
         (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

// The beginning of a text on one line: each control character or invalid byte becomes a space.
std::string Shortened(const std::string& text) {
  const std::string whole = ReplaceMalformed(absl::string_view(text).substr(0, kMaxSampleBytes));
  std::string shown;
  size_t characters = 0;
  for (size_t at = 0; at < whole.size();) {
    const CodePoint next = DecodeCodePoint(whole, at);
    const bool is_space = next.value == ' ' || IsControl(next.value);
    at += next.bytes;
    if (is_space && (shown.empty() || shown.back() == ' ')) continue;
    if (++characters > kMaxSampleText) return shown + "...";
    AppendUtf8(is_space ? U' ' : next.value, &shown);
  }
  return std::string(absl::StripTrailingAsciiWhitespace(shown));
}

}  // namespace

void StepFigures::Add(const records::StepRecord& record) {
  alarms_ = record.alarms;
  if (record.is_evaluation) {
    last_evaluation_ = record;
    return;
  }
  last_step_ = record;
  if (record.held_out_loss.has_value()) last_held_out_loss_ = record.held_out_loss;
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

std::optional<double> StepFigures::SecondsLeft(int64_t steps_total) const {
  if (recent_.empty() || !last_step_.has_value()) return std::nullopt;
  double seconds = 0;
  for (const records::StepRecord& step : recent_) seconds += step.figures.step_seconds;
  const double left = static_cast<double>(std::max<int64_t>(0, steps_total - last_step_->step));
  return left * seconds / static_cast<double>(recent_.size());
}

std::string DroppedText(const std::map<std::string, int64_t>& dropped) {
  // Groups without signal are replaced on purpose, and do not count as lost.
  static constexpr std::pair<const char*, const char*> kWords[] = {{"skipped", "rows skipped"},
                                                                   {"failed", "groups failed"},
                                                                   {"dropped_stale", "groups stale"},
                                                                   {"rolled_back", "groups rolled back"},
                                                                   {"past_deadline", "groups past their deadline"}};
  std::vector<std::string> phrases;
  for (const auto& [name, words] : kWords) {
    const auto found = dropped.find(name);
    if (found != dropped.end() && found->second > 0)
      phrases.push_back(absl::StrCat(Thousands(found->second), " ", words));
  }
  return absl::StrJoin(phrases, ", ");
}

std::vector<std::string> RenderTable(const RunView& view, size_t width) {
  int64_t step = view.steps.last_step().has_value() ? view.steps.last_step()->step : 0;
  std::vector<std::string> lines = {"", absl::StrFormat("%s   step %d of %d   %s%s", view.name, step, view.steps_total,
                                                        Clocked(view.elapsed_seconds), TimeLeft(view))};
  const auto append = [&lines](const std::vector<std::string>& more) {
    lines.insert(lines.end(), more.begin(), more.end());
  };
  if (view.steps.last_step().has_value()) {
    append(Wrapped(RewardLine(view), kBetweenFigures, width));
    if (const auto& evaluation = view.steps.last_evaluation(); evaluation.has_value()) {
      for (const std::string& phrase : records::EvaluationPhrases(*evaluation)) {
        append(Wrapped("evaluation " + phrase, ", ", width));
      }
    }
    append(Wrapped(StalenessLine(view), kBetweenFigures, width));
    if (!view.steps.alarms().empty()) append(Wrapped(records::ToString(view.steps.alarms()), " ", width));
  }
  if (const std::string dropped = DroppedText(view.groups); !dropped.empty()) append(Wrapped(dropped, ", ", width));
  if (const CheckpointFigures& checkpoints = view.checkpoints; checkpoints.failed > 0) {
    append(Wrapped(absl::StrCat("checkpoints: ", checkpoints.failed, " failed, ",
                                checkpoints.error.empty() ? "but the newest is saved"
                                                          : absl::StrCat("the newest with ", checkpoints.error)),
                   " ", width));
  }
  append(absl::StrSplit(Daemons(view), '\n', absl::SkipEmpty()));
  if (!view.waiting.empty()) append(Wrapped(view.waiting, " ", width));
  // The alarm may be the same sentence as what the trainer waits for.
  if (!view.alarm.empty() && view.alarm != view.waiting) append(Wrapped(view.alarm, " ", width));
  if (!view.reward_failure.empty()) append(Wrapped(view.reward_failure, " ", width));
  for (std::string& line : lines) line.resize(std::min(line.size(), width));
  return lines;
}

std::vector<std::string> RenderSamples(const records::StepRecord& evaluation) {
  std::vector<std::string> lines;
  for (const records::SampleAnswer& sample : evaluation.samples) {
    std::string line = absl::StrCat("  ", Shortened(sample.question), "  ", Shortened(sample.reply));
    // A right text may differ from the expected one: its reward shows that it is right.
    const bool is_right =
        !sample.expected.empty() && (sample.answer == sample.expected || sample.reply == sample.expected);
    if (is_right) absl::StrAppend(&line, "   right");
    if (!is_right && sample.reward.has_value()) absl::StrAppendFormat(&line, "   reward %.3g", *sample.reward);
    if (!is_right && !sample.expected.empty()) absl::StrAppend(&line, "   expected ", Shortened(sample.expected));
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace syncopate::run
