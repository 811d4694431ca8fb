#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace syncopate::run {

// One child process of a local run.
struct ChildId {
  std::string role;  // "synchronizer", "trainer", "rollouter" or "environment", a worker of users' Python
                     // for a trainer `index` is the rank
  int64_t index = 0;
  int64_t rank = 0;          // of a rollouter with several ranks
  std::string Name() const;  // "rollouter-1", "rollouter-1-rank2"
  friend auto operator<=>(const ChildId&, const ChildId&) = default;
};

// How a process ended.
struct ChildExit {
  bool by_signal = false;
  int code = 0;                                      // exit code, or the signal
  absl::Duration late_after = absl::ZeroDuration();  // not 0: it was killed, because it was not ready by then
  std::string ToString() const;                      // "exited with code 3", "was killed by signal 9"
};

// An action that the supervisor's owner must perform on a child.
struct ChildAction {
  enum class Kind { kStart, kTerminate, kKill };  // the last two: SIGTERM, SIGKILL
  Kind kind = Kind::kStart;
  ChildId child;
  friend bool operator==(const ChildAction&, const ChildAction&) = default;
};

enum class RunOutcome { kRunning, kCompleted, kInterrupted, kFailed };

// Decides which daemons of a run are started, restarted and stopped. Sans-IO: its owner reports events with their time,
// performs the returned actions, and reports again. No thread, no clock; not thread-safe.
//
// The synchronizer starts first, with the workers of users' Python if there are any; once all of them are ready, the
// trainer and the rollouters start. A rollouter, synchronizer or worker that exits is restarted after a backoff. The
// ranks of one rollouter end together, each by itself, and no rank restarts while another rank of the earlier
// incarnation is alive: one that does not end is stuck, and is killed. The run ends when the trainer's rank 0 exits
// (code 0: completed), when another trainer rank fails, when a daemon refuses its configuration, or when the
// synchronizer, all workers or all rollouters keep failing. Stopping has two stages within the grace: the trainer is
// asked first, so that it can save with the others alive, then the others; a daemon that is late is killed.
//
// A daemon that cannot start because the disk is full (daemon::kExitNoSpace) is started again each second, without
// limit, whatever its role: that is neither a failed start nor a restart.
//
// The ranks of a trainer end together. A rank that has lost another exits with code 4 after some seconds of silence. A
// rank that is still alive then is stuck, or about to end: it is killed soon, whatever the grace.
class RunSupervision {
 public:
  struct Options {
    int64_t rollouters = 1;
    int64_t rollouter_ranks = 1;  // of each rollouter
    int64_t trainer_ranks = 1;
    int64_t workers = 0;                                   // of users' Python
    absl::Duration grace = absl::Seconds(5);               // for the whole orderly stop
    absl::Duration lost_rank_grace = absl::Seconds(1.5);   // for the others, after one exited because of a lost rank
    absl::Duration lost_run_grace = absl::Seconds(2.5);    // for all daemons, after the same event
    absl::Duration lost_replica_grace = absl::Seconds(3);  // for a rollouter's other ranks, when one should restart
    absl::Duration start_timeout = absl::Seconds(60);      // from start to ready
    // Trainers and rollouters have more time, as they first read, draw or receive a model, or wait for a trainer that
    // does.
    absl::Duration model_start_timeout = absl::Minutes(5);
    absl::Duration min_backoff = absl::Milliseconds(200);
    absl::Duration max_backoff = absl::Seconds(5);
    absl::Duration disk_retry = absl::Seconds(1);
    int max_failed_starts = 5;         // in a row, without being ready: the child is given up
    int max_restarts_per_minute = 30;  // of one child that was ready
  };

  explicit RunSupervision(const Options& options);

  std::vector<ChildAction> Start(absl::Time now);
  // The child's servers listen now.
  std::vector<ChildAction> OnReady(const ChildId& child, absl::Time now);
  std::vector<ChildAction> OnExit(const ChildId& child, const ChildExit& reported, absl::Time now);
  // A user asks for the run's end: the first time it ends in order, the second time at once. Interrupts within a fifth
  // of a second count as one: some wrappers signal the process and then its group.
  std::vector<ChildAction> OnInterrupt(absl::Time now);
  // An external problem makes the run impossible, such as a write error in the run directory.
  std::vector<ChildAction> OnFailure(const std::string& reason, absl::Time now);
  // Handles due restarts and missed deadlines. Call it at NextTick() or a little later.
  std::vector<ChildAction> OnTick(absl::Time now);
  absl::Time NextTick() const;  // InfiniteFuture if no event is due

  // True once the outcome is decided and no child is alive.
  bool done() const;
  RunOutcome outcome() const { return outcome_; }
  bool stopping() const { return outcome_ != RunOutcome::kRunning; }
  const std::string& reason() const { return reason_; }    // why it failed
  const std::string& culprit() const { return culprit_; }  // the daemon that failed; "" if no daemon did
  // Whether the run failed because a trainer rank was lost, or the trainer said that a fresh start may succeed.
  bool lost_peer() const { return lost_peer_; }
  // Whether a resume may succeed: the run was interrupted, or failed for a reason that a new start may not meet again.
  // False e.g. for a refused configuration, a daemon that never gets ready, or a run that another trainer has taken
  // over.
  bool resume_helps() const;
  // Whether the child is not running, but will be started again.
  bool WillRestart(const ChildId& child) const;
  // WillRestart, and the child waits for room on the disk.
  bool WaitsForRoom(const ChildId& child) const;
  // The number of restarts of each child; all children are included.
  std::map<ChildId, int64_t> Restarts() const;

 private:
  enum class State { kAbsent, kBackoff, kStarting, kReady, kGivenUp };
  struct Child {
    State state = State::kAbsent;
    absl::Time since;                 // start of the state; kBackoff: its end
    int failed_starts = 0;            // in a row
    bool was_ready = false;           // now or in an earlier incarnation
    bool no_room = false;             // its last start found the disk full
    bool is_late = false;             // it is being killed, because it did not get ready in time
    std::deque<absl::Time> restarts;  // in the last minute
    int64_t restarts_total = 0;
    int64_t starts = 0;
  };

  absl::Duration StartTimeout(const ChildId& id) const {
    const bool has_model = id.role == "trainer" || id.role == "rollouter";
    return has_model ? options_.model_start_timeout : options_.start_timeout;
  }
  bool Alive(const Child& child) const { return child.state == State::kStarting || child.state == State::kReady; }
  void StartChild(const ChildId& id, absl::Time now, std::vector<ChildAction>* actions);
  void ScheduleRestart(const ChildId& id, bool was_ready, const ChildExit& exit, absl::Time now,
                       std::vector<ChildAction>* actions);
  void GiveUp(const ChildId& id, const std::string& why, absl::Time now, std::vector<ChildAction>* actions);
  void EndRun(RunOutcome outcome, absl::Time now, std::vector<ChildAction>* actions);
  void Fail(const std::string& culprit, const std::string& reason, absl::Time now, std::vector<ChildAction>* actions);
  void FailOnRank(const ChildId& id, const ChildExit& exit, absl::Time now, std::vector<ChildAction>* actions);
  void KillLateTrainer(std::vector<ChildAction>* actions);
  void StopOthers(std::vector<ChildAction>* actions);
  void KillAll(std::vector<ChildAction>* actions) const;
  bool AnyRollouterLeft() const;
  bool AnyWorkerLeft() const;
  // Whether every child was started. One of those that start first may not be given up before: the others would not
  // start.
  bool AllHaveBegun() const;
  // Living ranks of this rollouter that were not started again since this rank's last start.
  std::vector<ChildId> OfEarlierLife(const ChildId& id) const;

  Options options_;
  std::map<ChildId, Child> children_;
  RunOutcome outcome_ = RunOutcome::kRunning;
  std::string reason_;
  std::string culprit_;
  absl::Time interrupted_at_ = absl::InfiniteFuture();
  bool others_asked_ = false;
  bool lost_peer_ = false;
  bool hopeless_ = false;                                // a new start would end in the same way
  absl::Time kill_trainer_at_ = absl::InfiniteFuture();  // after the stop begins
  absl::Time kill_all_at_ = absl::InfiniteFuture();
  bool late_trainer_killed_ = false;
  bool late_others_killed_ = false;
};

}  // namespace syncopate::run
