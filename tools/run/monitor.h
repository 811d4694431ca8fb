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

// Asks the daemons of a run how they are, from two threads of its own: one polls every daemon's status, one follows the
// synchronizer's weight syncs. A daemon that does not answer simply keeps its last figures. Thread-safe.
class RunMonitor {
 public:
  struct Snapshot {
    SyncFigures syncs;
    CheckpointFigures checkpoints;
    std::map<std::string, int64_t> groups;     // of the trainer, by outcome
    std::string waiting;                       // of the trainer, a sentence
    std::string alarm;                         // what only somebody outside can mend: what the trainer waits for, that
                                               // rewards fail, or that a rollouter gets no weights; "" if nothing
    std::string reward_failure;                // how the first group failed that got no reward, a sentence
    std::map<std::string, DaemonRow> daemons;  // by name: state, version, groups, tokens_per_second, idle
  };

  // Told of each record of a weight sync, on a thread of the monitor's; must not block, and outlives the monitor.
  using SyncListener = std::function<void(const v1::SyncRecord&)>;

  // `security` null: plaintext.
  explicit RunMonitor(std::shared_ptr<const auth::TransportSecurity> security = nullptr,
                      SyncListener on_sync = nullptr);
  ~RunMonitor();  // Stop
  RunMonitor(const RunMonitor&) = delete;
  RunMonitor& operator=(const RunMonitor&) = delete;

  // Where the daemons are now; replaces what was said before.
  void SetEndpoints(std::vector<daemon::DaemonEndpoint> endpoints);
  Snapshot Get() const;
  // Ends calls under way and joins the threads. Idempotent; blocks for at most one poll.
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
  // Waits for the time to pass or for Stop; true if stopped.
  bool StoppedWithin(absl::Duration time);
  std::string SynchronizerAddress() const;

  const std::shared_ptr<const auth::TransportSecurity> security_;
  const SyncListener on_sync_;
  mutable Mutex mutex_;
  SyncTrouble trouble_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<daemon::DaemonEndpoint> endpoints_ ABSL_GUARDED_BY(mutex_);
  Snapshot snapshot_ ABSL_GUARDED_BY(mutex_);
  std::string synchronizer_alarm_ ABSL_GUARDED_BY(mutex_);  // that its disk is full; "" if it is not
  std::deque<double> totals_ ABSL_GUARDED_BY(mutex_);       // of the last syncs, seconds
  std::deque<double> pauses_ ABSL_GUARDED_BY(mutex_);
  grpc::ClientContext* watch_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the stream under way, to cancel it
  std::map<std::string, std::deque<Counters>> counters_;          // used by the polling thread alone
  RewardTrouble reward_trouble_;                                  // the same
  std::thread poll_thread_;
  std::thread watch_thread_;
};

}  // namespace syncopate::run
