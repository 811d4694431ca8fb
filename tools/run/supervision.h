#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace syncopate::run {

// A daemon of a local run.
struct ChildId {
  std::string role;  // "synchronizer", "trainer", "rollouter" or "environment", the worker of users' Python
                     // of a trainer the index is the rank
  int64_t index = 0;
  int64_t rank = 0;          // of a rollouter of several
  std::string Name() const;  // "rollouter-1", "rollouter-1-rank2"
  friend auto operator<=>(const ChildId&, const ChildId&) = default;
};

// How a process ended.
struct ChildExit {
  bool by_signal = false;
  int code = 0;                  // exit code, or the signal
  std::string ToString() const;  // "exited with code 3", "was killed by signal 9"
};

// What a supervisor wants done with a child.
struct ChildAction {
  enum class Kind { kStart, kTerminate, kKill };  // the last two: SIGTERM, SIGKILL
  Kind kind = Kind::kStart;
  ChildId child;
  friend bool operator==(const ChildAction&, const ChildAction&) = default;
};

enum class RunOutcome { kRunning, kCompleted, kInterrupted, kFailed };

// Decides which daemons of a run are started, restarted and stopped. Sans-IO: its owner reports what happened with the
// time, performs the actions that come back, and reports again. No thread, no clock; not thread-safe.
//
// The synchronizer starts first, and the worker of users' Python if there is one; once both are ready the trainer and
// the rollouters start. A rollouter, synchronizer or worker that exits is started again after a backoff; the ranks of
// one rollouter end together, each by itself, and none starts again beside one of an earlier life: one that does not
// end is stuck, and is killed. The run ends when the trainer's rank 0 exits (code 0: completed), when another of its
// ranks fails, when a daemon refuses its configuration, or when one keeps failing. Stopping has two stages within the
// grace: the trainer is asked first, so that it can save with the others alive, then the others; whoever is late is
// killed.
//
// A daemon that cannot start because the disk is full (daemon::kExitNoSpace) is started again each second, whichever it
// is, for as long as that takes: this is neither a failed start nor a restart.
//
// Ranks of a trainer end together. One that has lost another exits with code 4 after some seconds of silence, so
// whoever is left then is stuck, or about to end: it is killed soon, whatever the grace.
class RunSupervision {
 public:
  struct Options {
    int64_t rollouters = 1;
    int64_t rollouter_ranks = 1;  // of each
    int64_t trainer_ranks = 1;
    bool environment = false;                              // there is a worker of users' Python
    absl::Duration grace = absl::Seconds(5);               // for all of an orderly stop
    absl::Duration lost_rank_grace = absl::Seconds(1.5);   // after a rank said that it lost one: for the other ranks
    absl::Duration lost_run_grace = absl::Seconds(2.5);    // the same for everybody
    absl::Duration lost_replica_grace = absl::Seconds(3);  // after one rank of a rollouter would start: for the others
    absl::Duration start_timeout = absl::Seconds(60);      // from start to ready
    absl::Duration min_backoff = absl::Milliseconds(200);
    absl::Duration max_backoff = absl::Seconds(5);
    absl::Duration disk_retry = absl::Seconds(1);
    int max_failed_starts = 5;         // in a row, without ever getting ready: the child is given up
    int max_restarts_per_minute = 30;  // of one child that did get ready
  };

  explicit RunSupervision(const Options& options);

  std::vector<ChildAction> Start(absl::Time now);
  // The child's servers listen.
  std::vector<ChildAction> OnReady(const ChildId& child, absl::Time now);
  std::vector<ChildAction> OnExit(const ChildId& child, const ChildExit& exit, absl::Time now);
  // Somebody wants the run to end: the first time orderly, the second time at once. What comes within a fifth of a
  // second counts as one: some wrappers signal the process and then its group.
  std::vector<ChildAction> OnInterrupt(absl::Time now);
  // Something outside makes the run impossible, such as a full disk.
  std::vector<ChildAction> OnFailure(const std::string& reason, absl::Time now);
  // Due restarts and broken deadlines. Call it at NextTick() or a little later.
  std::vector<ChildAction> OnTick(absl::Time now);
  absl::Time NextTick() const;  // InfiniteFuture if nothing waits for time to pass

  // True once the outcome is settled and no child is alive.
  bool done() const;
  RunOutcome outcome() const { return outcome_; }
  bool stopping() const { return outcome_ != RunOutcome::kRunning; }
  const std::string& reason() const { return reason_; }    // why it failed
  const std::string& culprit() const { return culprit_; }  // name of the daemon that it failed on, if one
  // It failed on a trainer's rank that was lost, or on a trainer that said that a fresh start may do better.
  bool lost_peer() const { return lost_peer_; }
  // The run has not ended well, and not on what the same start would meet again: a configuration that is refused, a
  // daemon that never gets ready, a trainer that has taken over.
  bool resume_helps() const;
  // The child is not there, but will be started again.
  bool WillRestart(const ChildId& child) const;
  // The same, and what it waits for is room on the disk.
  bool WaitsForRoom(const ChildId& child) const;
  // How often each child was started again; every child is there.
  std::map<ChildId, int64_t> Restarts() const;

 private:
  enum class State { kAbsent, kBackoff, kStarting, kReady, kGivenUp };
  struct Child {
    State state = State::kAbsent;
    absl::Time since;                 // of the state; kBackoff: when it ends
    int failed_starts = 0;            // in a row
    bool was_ready = false;           // in this life or an earlier one
    bool no_room = false;             // its last start found the disk full
    std::deque<absl::Time> restarts;  // of the last minute
    int64_t restarts_total = 0;
    int64_t starts = 0;
  };

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
  // Other ranks of this rollouter that are there and have not been started again since.
  std::vector<ChildId> OfEarlierLife(const ChildId& id) const;

  Options options_;
  std::map<ChildId, Child> children_;
  RunOutcome outcome_ = RunOutcome::kRunning;
  std::string reason_;
  std::string culprit_;
  absl::Time interrupted_at_ = absl::InfiniteFuture();
  bool others_asked_ = false;
  bool lost_peer_ = false;
  bool hopeless_ = false;                                // the same start would end the same way
  absl::Time kill_trainer_at_ = absl::InfiniteFuture();  // once it stops
  absl::Time kill_all_at_ = absl::InfiniteFuture();
  bool late_trainer_killed_ = false;
  bool late_others_killed_ = false;
};

}  // namespace syncopate::run
