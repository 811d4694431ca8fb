#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/records/step_record.h"

// The state of a local run that its user sees. Plain data and pure functions.
namespace syncopate::run {

// Weight syncs so far, over all receivers.
struct SyncFigures {
  int64_t ok = 0;
  int64_t failed = 0;
  double last_seconds = 0;    // publish to commit
  double median_seconds = 0;  // of the last 100
  double median_pause_seconds = 0;
};

struct DaemonRow {
  std::string name;
  std::string state;  // "starting", "running", ...
  std::string version;
  int64_t pid = 0;
  int64_t groups = 0;  // trainer: trained; rollouter: submitted
  double tokens_per_second = 0;
  double idle = 0;  // share of time
  int64_t restarts = 0;
};

// Figures of the training steps; rates are over the last 20 steps.
class StepFigures {
 public:
  void Add(const records::StepRecord& record);

  const std::optional<records::StepRecord>& last_step() const { return last_step_; }
  const std::optional<records::StepRecord>& last_evaluation() const { return last_evaluation_; }
  const std::optional<double>& last_held_out_loss() const { return last_held_out_loss_; }
  // The learning alarms that are raised now: those of the last record of either kind.
  const std::vector<std::string>& alarms() const { return alarms_; }
  double TokensPerSecond() const;
  double Idle() const;
  // The estimated time until step `steps_total`; nullopt before the first step.
  std::optional<double> SecondsLeft(int64_t steps_total) const;

 private:
  std::deque<records::StepRecord> recent_;
  std::optional<records::StepRecord> last_step_;
  std::optional<records::StepRecord> last_evaluation_;
  std::optional<double> last_held_out_loss_;
  std::vector<std::string> alarms_;
};

// Checkpoints of this incarnation of the trainer, and the best one of the run.
struct CheckpointFigures {
  int64_t failed = 0;
  std::string error = {};  // why the newest one could not be saved; "" if it was saved
  std::string best = {};   // the one with the best evaluation, which can be exported; "": none yet
  double best_reward = 0;
  std::string export_folder = {};  // path of the best one, once the run is over; "": it cannot be exported
  bool of_adapters = false;        // they are exported as a PEFT directory, or merged into their base
};

struct RunView {
  std::string name;
  int64_t steps_total = 0;
  double elapsed_seconds = 0;
  std::optional<double> seconds_limit;  // the run ends then, at any step
  StepFigures steps;
  SyncFigures syncs;
  CheckpointFigures checkpoints;
  std::map<std::string, int64_t> groups;  // of this incarnation of the trainer, by outcome: TrainerService.GetStatus
  std::string waiting;                    // what the run waits for, a sentence; "": nothing
  std::string alarm;                      // a problem that a user must solve, a sentence; "": none
  std::string reward_failure;             // why the first group without a reward failed, a sentence; "": none did
  std::vector<DaemonRow> daemons;
  bool resume_helps = true;  // for a run that is not complete
};

// The live table, lines of at most `width` characters: figures and sentences continue on the next line, rows are cut.
std::vector<std::string> RenderTable(const RunView& view, size_t width);

// "12 rows skipped, 3 groups failed": rows that were no prompts, and groups that were lost; "" if none.
std::string DroppedText(const std::map<std::string, int64_t>& dropped);

// Samples of an evaluation, one line each: the user's last message and the answer, without control characters.
std::vector<std::string> RenderSamples(const records::StepRecord& evaluation);

}  // namespace syncopate::run
