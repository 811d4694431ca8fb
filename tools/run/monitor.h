#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/daemon/daemon_endpoints.h"
#include "base/mutex.h"
#include "services/auth/transport_security.h"
#include "syncopate/v1/synchronizer.pb.h"
#include "tools/run/reward_trouble.h"
#include "tools/run/run_view.h"
#include "tools/run/sync_trouble.h"

namespace grpc {
class ClientContext;
}

namespace syncopate::run {

// Asks the daemons of a run for their status, from two threads of its own: one polls every daemon, one follows the
// synchronizer's weight syncs. A daemon that does not answer keeps its last figures. Thread-safe.
class RunMonitor {
 public:
  struct Snapshot {
    SyncFigures syncs;
    CheckpointFigures checkpoints;
    std::map<std::string, int64_t> groups;     // the trainer's, by outcome
    std::string waiting;                       // what the trainer waits for, a sentence
    std::string alarm;                         // a problem that only a user can solve: the trainer waits, rewards
                                               // fail, or a rollouter gets no weights; "": none
    std::string reward_failure;                // why the first group without a reward failed, a sentence
    std::map<std::string, DaemonRow> daemons;  // by name: state, version, groups, tokens_per_second, idle
  };

  // Called with each record of a weight sync, on a thread of the monitor; must not block, and must outlive the monitor.
  using SyncListener = std::function<void(const v1::SyncRecord&)>;

  // `security` null: plaintext.
  explicit RunMonitor(std::shared_ptr<const auth::TransportSecurity> security = nullptr,
                      SyncListener on_sync = nullptr);
  ~RunMonitor();  // calls Stop
  RunMonitor(const RunMonitor&) = delete;
  RunMonitor& operator=(const RunMonitor&) = delete;

  // Sets the daemons' present addresses; replaces the earlier ones.
  void SetEndpoints(std::vector<daemon::DaemonEndpoint> endpoints);
  Snapshot Get() const;
  // Cancels running calls and joins the threads. Idempotent; blocks for at most one poll.
  void Stop();

 private:
  // Counters of a rollouter at one poll; rates are differences over the last few polls.
  struct Counters {
    absl::Time at;
    int64_t tokens = 0;
    double busy_seconds = 0;
    double idle_seconds = 0;
  };

  void PollLoop();
  void PollTrainer(const daemon::DaemonEndpoint& endpoint);
  void PollRollouter(const daemon::DaemonEndpoint& endpoint);
  void PollSynchronizer(const daemon::DaemonEndpoint& endpoint);
  void WatchLoop();
  void WatchSyncs(const std::string& address);
  void Count(const v1::SyncRecord& record);
  // Waits until the time has passed or Stop is called; true if stopped.
  bool StoppedWithin(absl::Duration time);
  std::string SynchronizerAddress() const;

  const std::shared_ptr<const auth::TransportSecurity> security_;
  const SyncListener on_sync_;
  mutable Mutex mutex_;
  SyncTrouble trouble_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<daemon::DaemonEndpoint> endpoints_ ABSL_GUARDED_BY(mutex_);
  Snapshot snapshot_ ABSL_GUARDED_BY(mutex_);
  std::string synchronizer_alarm_ ABSL_GUARDED_BY(mutex_);  // its disk is full; "": it is not
  std::deque<double> totals_ ABSL_GUARDED_BY(mutex_);       // of the last syncs, seconds
  std::deque<double> pauses_ ABSL_GUARDED_BY(mutex_);
  grpc::ClientContext* watch_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the running stream, to cancel it
  std::map<std::string, std::deque<Counters>> counters_;          // used by the polling thread only
  RewardTrouble reward_trouble_;                                  // used by the polling thread only
  std::thread poll_thread_;
  std::thread watch_thread_;
};

}  // namespace syncopate::run
