#include "tools/run/display.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/console/words.h"

namespace syncopate::run {
namespace {

using nlohmann::json;

// The number at `pointer` in a summary, 0 if there is none.
double At(const json& summary, const char* pointer) {
  json::json_pointer path(pointer);
  return summary.contains(path) && summary[path].is_number() ? summary[path].get<double>() : 0.0;
}

std::string RenderStart(const std::string& program, const std::string& run_dir,
                        const std::vector<daemon::DaemonEndpoint>& daemons, const std::string& page) {
  std::string metrics, victim;
  for (const daemon::DaemonEndpoint& daemon : daemons) {
    if (!daemon.metrics.empty())
      absl::StrAppend(&metrics, "  http://", daemon.metrics, "/metrics  ", daemon.Name(), "\n");
    if (daemon.role == "rollouter") {
      victim = absl::StrCat("  kill -9 ", daemon.pid, "   ", daemon.Name(), ": it is started again, nothing is lost\n");
    }
  }
  return absl::StrCat("run directory\n  ", run_dir, page.empty() ? "" : "\npage\n  ", page, "\nmetrics\n", metrics,
                      "watch from another terminal\n  ", program, " ctl --run ", run_dir,
                      " watch   (or status, explain, syncs, members)\ntry\n", victim);
}

class PlainDisplay : public RunDisplay {
 public:
  PlainDisplay(std::string program, std::ostream* out, bool quiet)
      : out_(*out), program_(std::move(program)), quiet_(quiet) {}

  void Started(const std::string& run_dir, const std::vector<daemon::DaemonEndpoint>& daemons,
               const std::string& page) override {
    if (!quiet_) Note(RenderStart(program_, run_dir, daemons, page));
    // A user who asks for a page on any free port must be told which one it is.
    if (quiet_ && !page.empty()) Note(absl::StrCat("page            ", page, "\n"));
  }

  void Step(const records::StepRecord& record, const std::string&) override {
    NoteAlarms(record);
    if (quiet_) return;
    if (record.is_evaluation) {
      ShowFirstSamples(record);
      std::string text = records::ToString(record) + "\n";
      for (const std::string& phrase : records::EvaluationPhrases(record)) absl::StrAppend(&text, "  ", phrase, "\n");
      Note(text);
    } else if (Due() || record.held_out_loss.has_value()) {
      Note(records::ToString(record) + "\n");
    }
  }

  void Daemon(const std::string& daemon, const std::string& what) override {
    if (!quiet_) Note(absl::StrCat(daemon, " ", what, "\n"));
  }

  // A quiet run also reports what it waits for.
  void Refresh(const RunView& view) override {
    NoteRewardFailure(view);
    if (!view.alarm.empty() && alarm_.empty()) Note(view.alarm + "\n");
    if (view.alarm.empty() && !alarm_.empty()) Note("the run goes on\n");
    alarm_ = view.alarm;
  }

  void Ended(const RunView& view, const std::string& run_dir, const json& summary) override {
    Note(RenderEnd(view, program_, run_dir, summary));
  }

 protected:
  // Prints complete lines that stay on the screen.
  virtual void Note(const std::string& text) { out_ << text << std::flush; }

  void ShowFirstSamples(const records::StepRecord& record) {
    if (samples_shown_ || record.samples.empty()) return;
    samples_shown_ = true;
    std::string text = absl::StrFormat("answers at step %d\n", record.step);
    for (const std::string& line : RenderSamples(record)) absl::StrAppend(&text, line, "\n");
    Note(text);
  }

  // Reported once, at the first failure: a run whose reward cannot judge should be noticed at once.
  void NoteRewardFailure(const RunView& view) {
    if (view.reward_failure.empty() || std::exchange(reward_failure_noted_, true)) return;
    Note(view.reward_failure + "\n");
  }

  std::ostream& out_;

 private:
  // Reported in every mode, because a user must look.
  void NoteAlarms(const records::StepRecord& record) {
    if (record.alarms == alarms_) return;
    const std::string now = records::ToString(record.alarms);
    Note(absl::StrFormat("step %d  %s\n", record.step, now.empty() ? "no alarm stands any more" : now));
    alarms_ = record.alarms;
  }

  bool Due() {
    absl::Time now = Clock::Real()->Now();
    if (now - last_step_ < absl::Seconds(1)) return false;
    last_step_ = now;
    return true;
  }

  const std::string program_;
  const bool quiet_;
  std::string alarm_;                // the one that is raised now
  std::vector<std::string> alarms_;  // of learning
  bool samples_shown_ = false;
  bool reward_failure_noted_ = false;
  absl::Time last_step_ = absl::InfinitePast();
};

// Draws the table over the previous one; notes scroll away above it.
class LiveDisplay final : public PlainDisplay {
 public:
  LiveDisplay(std::string program, std::ostream* out) : PlainDisplay(std::move(program), out, /*quiet=*/false) {}

  void Step(const records::StepRecord& record, const std::string&) override {
    if (record.is_evaluation) ShowFirstSamples(record);
  }

  void Refresh(const RunView& view) override {
    NoteRewardFailure(view);
    table_ = RenderTable(view, Width());
    Draw(Erase());
  }

  void Ended(const RunView& view, const std::string& run_dir, const json& summary) override {
    NoteRewardFailure(view);
    table_ = RenderTable(view, Width());
    Draw(Erase());
    drawn_ = 0;
    table_.clear();
    PlainDisplay::Ended(view, run_dir, summary);
  }

 protected:
  void Note(const std::string& text) override { Draw(Erase() + text); }

 private:
  static size_t Width() {
    winsize size{};
    bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    // One column less: some terminals wrap a line that fills the last column, and the line takes two rows.
    return known ? size.ws_col - 1 : 79;
  }

  std::string Erase() const { return drawn_ == 0 ? "" : absl::StrCat("\x1b[", drawn_, "A\x1b[J"); }

  void Draw(std::string text) {
    for (const std::string& line : table_) absl::StrAppend(&text, line, "\n");
    drawn_ = table_.size();
    out_ << text << std::flush;
  }

  std::vector<std::string> table_;
  size_t drawn_ = 0;  // lines on the screen that the next drawing replaces
};

class JsonDisplay final : public RunDisplay {
 public:
  explicit JsonDisplay(std::ostream* out) : out_(*out) {}

  void Started(const std::string& run_dir, const std::vector<daemon::DaemonEndpoint>& daemons,
               const std::string& page) override {
    json list = json::array();
    for (const daemon::DaemonEndpoint& daemon : daemons) {
      list.push_back(
          {{"name", daemon.Name()}, {"grpc", daemon.grpc}, {"metrics", daemon.metrics}, {"pid", daemon.pid}});
    }
    json started = {{"event", "started"}, {"run_dir", run_dir}, {"daemons", list}};
    if (!page.empty()) started["page"] = page;
    Print(started);
  }
  void Step(const records::StepRecord&, const std::string& line) override {
    json metrics = json::parse(line, nullptr, /*allow_exceptions=*/false);
    Print({{"event", "step"}, {"metrics", metrics}});
  }
  void Daemon(const std::string& daemon, const std::string& what) override {
    Print({{"event", "daemon"}, {"daemon", daemon}, {"what", what}});
  }
  void Refresh(const RunView& view) override {
    if (!view.reward_failure.empty() && !std::exchange(reward_failure_noted_, true)) {
      Print({{"event", "reward_failed"}, {"what", view.reward_failure}});
    }
    if (view.alarm.empty() != alarm_.empty()) Print({{"event", "alarm"}, {"what", view.alarm}});
    alarm_ = view.alarm;
  }
  void Ended(const RunView&, const std::string& run_dir, const json& summary) override {
    Print({{"event", "ended"}, {"run_dir", run_dir}, {"summary", summary}});
  }

 private:
  void Print(const json& object) {
    out_ << object.dump(-1, ' ', false, json::error_handler_t::replace) << "\n" << std::flush;
  }

  std::ostream& out_;
  std::string alarm_;  // the one that is raised now; "" after its end
  bool reward_failure_noted_ = false;
};

// The last evaluation, and the checkpoints of the run: the best one can be exported.
std::string RenderEvaluation(const RunView& view, const json& summary) {
  std::string text;
  if (const auto& evaluation = view.steps.last_evaluation(); evaluation.has_value()) {
    absl::StrAppendFormat(&text, "evaluation      %.3f last", evaluation->eval_reward.value_or(0));
    if (evaluation->eval_prompts < evaluation->eval_asked) {
      absl::StrAppendFormat(&text, ", over %d of %d prompts", evaluation->eval_prompts, evaluation->eval_asked);
    }
    absl::StrAppend(&text, "\n");
    if (evaluation->eval_exact.has_value()) {
      absl::StrAppendFormat(&text, "exact match     %.3f last\n", *evaluation->eval_exact);
    }
    for (const std::string& phrase : records::EvaluationPhrases(*evaluation)) {
      absl::StrAppend(&text, "                ", phrase, "\n");
    }
  }
  if (const auto& loss = view.steps.last_held_out_loss(); loss.has_value()) {
    absl::StrAppendFormat(&text, "held-out loss   %.4f last\n", *loss);
  }
  // A killed trainer has left no summary: the last status from it is used.
  const json::json_pointer path("/checkpoints/best");
  const bool said = summary.contains(path) && summary[path].is_string();
  const std::string best = said ? summary[path].get<std::string>() : view.checkpoints.best;
  if (!best.empty()) {
    absl::StrAppendFormat(&text, "best checkpoint %s: %.3f\n", best,
                          said ? At(summary, "/checkpoints/best_reward") : view.checkpoints.best_reward);
  }
  const double failed = std::max(At(summary, "/checkpoints/failed"), static_cast<double>(view.checkpoints.failed));
  if (failed > 0) {
    absl::StrAppendFormat(&text, "checkpoints     %.0f failed%s\n", failed,
                          view.checkpoints.error.empty() ? "" : ", the newest with " + view.checkpoints.error);
  }
  return text;
}

// The lost rows and groups, in the words of the table.
std::string RenderDropped(const RunView& view, const json& summary) {
  std::map<std::string, int64_t> dropped = view.groups;
  const json::json_pointer path("/groups/dropped");
  if (summary.contains(path)) {
    dropped.clear();
    for (const char* name : {"skipped", "failed", "rolled_back", "past_deadline"}) {
      dropped[name] = static_cast<int64_t>(At(summary, absl::StrCat("/groups/dropped/", name).c_str()));
    }
    dropped["dropped_stale"] = static_cast<int64_t>(At(summary, "/groups/dropped/stale"));
  }
  const std::string text = DroppedText(dropped);
  return text.empty() ? "" : absl::StrCat("dropped         ", text, "\n");
}

std::string RenderFigures(const json& summary) {
  std::string text = absl::StrFormat("staleness       %.2f mean, %.0f max, %.0f over the bound %.0f\n",
                                     At(summary, "/staleness/mean"), At(summary, "/staleness/max"),
                                     At(summary, "/staleness/violations"), At(summary, "/staleness/bound"));
  absl::StrAppendFormat(&text,
                        "weight syncs    %.0f, %.0f failed, median %.1f ms; generation paused %.2f ms (median)\n",
                        At(summary, "/syncs/count"), At(summary, "/syncs/failed"), At(summary, "/syncs/total_ms/p50"),
                        At(summary, "/pause_ms/p50"));
  absl::StrAppend(&text, "idle            trainer ", Percent(At(summary, "/idle/trainer")), ", rollouters ",
                  Percent(At(summary, "/idle/rollouters")), "\n");
  return text;
}

}  // namespace

std::string RenderEnd(const RunView& view, const std::string& program, const std::string& run_dir,
                      const json& summary) {
  std::string outcome = summary["run"]["outcome"].get<std::string>();
  std::string reason = summary["run"]["reason"].get<std::string>();
  std::string text;
  const auto& evaluation = view.steps.last_evaluation();
  if (evaluation.has_value() && !evaluation->samples.empty()) {
    absl::StrAppend(&text, "answers at step ", evaluation->step, "\n");
    for (const std::string& line : RenderSamples(*evaluation)) absl::StrAppend(&text, line, "\n");
  }
  // A resume that had nothing to do has no step.
  const bool made = view.steps.last_step().has_value();
  const int64_t step = made ? view.steps.last_step()->step : static_cast<int64_t>(At(summary, "/steps"));
  absl::StrAppendFormat(&text, "%-15s at step %d of %d after %.1f s%s\n", outcome, step, view.steps_total,
                        At(summary, "/run/wall_seconds"), reason.empty() ? "" : ": " + reason);
  absl::StrAppend(&text, RenderEvaluation(view, summary), RenderDropped(view, summary));
  if (summary.contains("staleness")) absl::StrAppend(&text, RenderFigures(summary));
  absl::StrAppend(&text, "run directory   ", run_dir, "\n");
  if (!view.checkpoints.export_folder.empty()) {
    absl::StrAppend(&text, "export the best ", program, " export ", view.checkpoints.export_folder, " DIR",
                    view.checkpoints.of_adapters ? " --adapter" : "", "\n");
  }
  if (outcome != "completed" && view.resume_helps) {
    absl::StrAppend(&text, "resume          ", program, " run --resume ", run_dir, "\n");
  }
  if (outcome == "completed" && step > 0) {  // a run of evaluations alone has no step
    absl::StrAppend(&text, "train on        ", program, " run --resume ", run_dir, " run.steps=", 2 * view.steps_total,
                    "\n");
  }
  return text;
}

std::unique_ptr<RunDisplay> MakeDisplay(RunOutput output, const std::string& program, std::ostream* out) {
  switch (output) {
    case RunOutput::kLive:
      return std::make_unique<LiveDisplay>(program, out);
    case RunOutput::kPlain:
      return std::make_unique<PlainDisplay>(program, out, /*quiet=*/false);
    case RunOutput::kQuiet:
      return std::make_unique<PlainDisplay>(program, out, /*quiet=*/true);
    case RunOutput::kJson:
      return std::make_unique<JsonDisplay>(out);
  }
  return nullptr;
}

}  // namespace syncopate::run
