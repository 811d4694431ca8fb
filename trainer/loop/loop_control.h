#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/policy_version.h"
#include "base/status.h"

namespace syncopate::trainer {

// The requests of other threads to a step loop, and the status that they see of it. Thread-safe.
class LoopControl {
 public:
  // Work between two steps; `over` is an error (CANCELLED, reason RUN_OVER) if no more of it can be done. Called once,
  // with no lock held.
  using Task = std::function<void(const absl::Status& over)>;

  struct Status {
    PolicyVersion version;
    std::string state;  // "running", "replaying", "paused", "rollout_mode", "evaluating", "stopping", "done", "failed"
    absl::Time paused_since;  // while "paused" or "rollout_mode"
    std::string last_checkpoint;
    int64_t failed_checkpoints = 0;  // of this incarnation
    std::string checkpoint_error;    // why the newest one could not be saved; "" if it was
    std::string best_checkpoint;     // the one with the best evaluation, for export; "": there is none yet
    double best_checkpoint_reward = 0;
  };
  // The requests to the loop since it last took them.
  struct Requests {
    bool stop = false;
    bool fenced = false;
    std::vector<Task> tasks = {};
    bool saves = false;                            // one of the tasks saves a checkpoint
    absl::Duration paused = absl::ZeroDuration();  // how long looking took because the loop is paused
  };

  explicit LoopControl(const PolicyVersion& start);

  // -- For any thread.
  void Pause();
  void Resume();
  void Stop();
  void StopFenced();
  bool stop_requested() const;
  void Add(Task task, bool saves);
  Status GetStatus() const;

  // -- For the step thread. Returns what is requested now. Blocks while the loop is paused and nothing else is
  // requested. `state` is what the loop does unless it is paused or in rollout mode, which is a pause of its own.
  Requests AwaitRequests(const std::string& state);
  // Returns true as soon as a stop of the run is requested, false after `timeout`.
  bool AwaitStop(absl::Duration timeout) const;
  bool MayBeginStep() const;  // neither a pause nor the end is requested
  bool fenced() const;
  void SetState(const std::string& state);
  void SetRolloutMode(bool is_on);
  void SetVersion(const PolicyVersion& version);
  // A checkpoint was saved, or why not; by the thread that saves, too.
  void RecordCheckpoint(const PolicyVersion& version, const absl::Status& saved);
  void SetBestCheckpoint(const PolicyVersion& version, double reward_mean);
  // Call when the run is over, with how it ended: tasks that are not done, and later ones, get RUN_OVER.
  void Close(const std::string& state);

 private:
  mutable Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool fenced_ ABSL_GUARDED_BY(mutex_) = false;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool rollout_mode_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool saves_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::trainer
