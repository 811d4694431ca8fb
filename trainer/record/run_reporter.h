#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/mutex.h"
#include "base/status.h"
#include "trainer/loop/flow_sums.h"
#include "trainer/loop/run_observer.h"
#include "trainer/record/step_figure_table.h"

namespace syncopate::trainer {

// The first 32 parts of the batch's reward by name, with their means: parts of users' Python may be any number.
std::map<std::string, double> ShownRewardParts(const StepReport& report);

// Writes the report of a run for people: metrics.jsonl, one JSON object a line for each step ("kind": "step") and each
// evaluation ("kind": "eval"), and figures that add up over them. A resumed run appends; where it repeats a step, the
// line of the higher epoch counts. A full disk costs lines, never the run: it is said once in the log. Thread-safe.
class RunReporter {
 public:
  // Called with no lock held, one call at a time and in the order of the lines, from a thread that reports, watches or
  // ends; must not block.
  struct Listener {
    std::function<void(int64_t step, const std::string& line)> on_line;  // of metrics.jsonl
    std::function<void()> on_end;                                        // there will be no more lines
  };

  // Appends to `path`; each line has the time that `clock`, which must outlive this, says. PERMISSION_DENIED and the
  // like if it cannot be written.
  static absl::StatusOr<std::unique_ptr<RunReporter>> Open(FileSystem* files, const std::string& path,
                                                           const Clock* clock = Clock::Real());

  void RecordStep(const StepReport& report);
  void RecordEvaluation(const EvaluationReport& report);
  void CountCheckpoint(bool saved);
  void CountLostEvaluation();  // in figures(); no line

  // Gives the last `last` lines (at most 1000), then every new one until End or until the returned function is called,
  // after which at most the call under way goes on.
  std::function<void()> Watch(size_t last, Listener listener);
  // The run is over: tells all present and future listeners.
  void End();

  int64_t lost_lines() const;  // that the disk did not take
  // Figures over everything that was reported.
  RunFigures figures() const;

 private:
  struct Line {
    int64_t step;
    std::string text;
  };
  // One listener and what it has not been told yet. A thread that finds no other thread calling the listener
  // calls it.
  struct Watcher {
    Listener listener;
    std::deque<Line> untold;
    bool end_untold = false;
    bool being_told = false;
    bool gone = false;
  };

  RunReporter(std::unique_ptr<AppendFile> file, const Clock* clock) : clock_(clock), file_(std::move(file)) {}
  void WriteLine(int64_t step, nlohmann::json line);
  void WriteToWatcher(const std::shared_ptr<Watcher>& watcher);

  const Clock* const clock_;
  mutable Mutex mutex_;
  const std::unique_ptr<AppendFile> file_ ABSL_PT_GUARDED_BY(mutex_);
  bool write_failed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t lost_lines_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Line> recent_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);  // what they point to as well
  RunFigures figures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::trainer
