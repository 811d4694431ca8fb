#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/records/step_record.h"

// What somebody in front of a local run sees. Plain data and pure functions.
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
  int64_t groups = 0;  // trainer: taken; rollouter: submitted
  double tokens_per_second = 0;
  double idle = 0;  // share of the time
  int64_t restarts = 0;
};

// Figures of the training steps, the rates over the last 20 of them.
class StepFigures {
 public:
  void Add(const records::StepRecord& record);

  const std::optional<records::StepRecord>& last_step() const { return last_step_; }
  const std::optional<records::StepRecord>& last_evaluation() const { return last_evaluation_; }
  // Of learning, that stand: of the last record of either kind.
  const std::vector<std::string>& alarms() const { return alarms_; }
  double TokensPerSecond() const;
  double Idle() const;
  // About how long the steps up to `steps_total` will take; none before there is a step.
  std::optional<double> SecondsLeft(int64_t steps_total) const;

 private:
  std::deque<records::StepRecord> recent_;
  std::optional<records::StepRecord> last_step_;
  std::optional<records::StepRecord> last_evaluation_;
  std::vector<std::string> alarms_;
};

// Checkpoints of this life of the trainer, and the best one of the run.
struct CheckpointFigures {
  int64_t failed = 0;
  std::string error = {};  // why the newest one could not be saved; "" if it was
  std::string best = {};   // the one with the best evaluation, which can be exported; "" before there is one
  double best_reward = 0;
  std::string export_folder = {};  // where that one is, once the run is over; "" for a model that cannot be exported
};

struct RunView {
  std::string name;
  int64_t steps_total = 0;
  double elapsed_seconds = 0;
  std::optional<double> seconds_limit;  // when the run ends, whatever its step
  StepFigures steps;
  SyncFigures syncs;
  CheckpointFigures checkpoints;
  std::map<std::string, int64_t> groups;  // of this life of the trainer, by outcome: TrainerService.GetStatus
  std::string waiting;                    // who waits for whom, a sentence; "" if nobody
  std::string alarm;                      // what somebody must mend, a sentence; "" if nothing
  std::string reward_failure;             // how the first group failed that got no reward, a sentence; "" if none has
  std::vector<DaemonRow> daemons;
  bool resume_helps = true;  // if the run has not been completed
};

// The live table, lines of at most `width` characters: figures and sentences go on in the next line, rows are cut.
std::vector<std::string> RenderTable(const RunView& view, size_t width);

// "12 rows skipped, 3 groups failed": rows that were no prompts, and groups that came to nothing; "" without any.
std::string DroppedText(const std::map<std::string, int64_t>& dropped);

// Samples of an evaluation, one line each: the user's last message and the answer, without what controls a terminal.
std::vector<std::string> RenderSamples(const records::StepRecord& evaluation);

}  // namespace syncopate::run
