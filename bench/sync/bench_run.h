#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/process/bench_child.h"
#include "bench/process/event_queue.h"
#include "bench/sync/sync_case.h"
#include "bench/sync/sync_result.h"
#include "bench/sync/sync_watch.h"

namespace syncopate::bench {

std::string SourceName(int32_t rank);                     // "source-0"
std::string ReceiverName(int32_t replica, int32_t rank);  // "receiver-1.0"
std::string ReplicaName(int32_t replica);                 // "rollouter-1", its name at the synchronizer
inline constexpr char kSynchronizerName[] = "synchronizer";

// The daemons of one benchmark's run, started one by one, and the weight syncs that the synchronizer has recorded so
// far. Owned by one thread, which must outlive this object; all daemons are killed with it. Every call that waits ends
// when the event has happened, or at its own limit or the benchmark's. It fails at once if a daemon ends unexpectedly:
// UNAVAILABLE reason PEER_DIED with the end of its log. DEADLINE_EXCEEDED reason DEADLINE says what did not come.
class BenchRun {
 public:
  struct Options {
    SyncCase sync_case;
    std::vector<std::string> words;  // BenchRunWords
    std::string binary_dir;          // of the daemons
    std::string work_dir;            // for logs and the run directory
    int devices = 0;                 // GPUs of this machine
    absl::Time deadline;             // of Clock::Real()
  };

  // Starts the synchronizer. Errors of BenchChild.
  static absl::StatusOr<std::unique_ptr<BenchRun>> Start(Options options);
  ~BenchRun();

  // Starts all ranks of the trainer; returns when it is ready. `resumes`: it goes on with what an earlier one has left.
  absl::Status StartTrainer(bool resumes);
  // Starts the ranks of a replica, and returns when the last one runs; it is ready when it takes part in a sync.
  absl::Status LaunchReplica(int32_t replica);
  // Restarts it with the same state and address.
  absl::Status RestartSynchronizer();

  // Every record so far, in order.
  const std::vector<SyncSample>& samples() const { return samples_; }
  // Waits until each of the replicas has `count` good records after the first `from` of samples(), and returns these.
  absl::StatusOr<std::vector<SyncSample>> AwaitSyncs(size_t from, const std::vector<int32_t>& replicas, int32_t count,
                                                     absl::Duration limit);

  // Handles events until `done`, which is called after each of them. `what` is for the error message.
  absl::Status Await(const std::function<bool()>& done, absl::Duration limit, const std::string& what);
  // Handles events for this duration.
  absl::Status Idle(absl::Duration duration);

  // Lets this process end unexpectedly.
  void Expend(const std::string& name) { expended_.insert(name); }
  bool HasEnded(const std::string& name) const { return ended_.count(name) > 0; }
  void Signal(const std::string& name, int number) { children_.at(name)->Signal(number); }
  // Kills the process, waits until it is gone, and forgets it.
  void Remove(const std::string& name);
  double StartedAt(const std::string& name) const;  // the machine's clock
  pid_t GetPid(const std::string& name) const { return children_.at(name)->pid(); }
  // Names of the trainer's and the rollouters' processes that have not ended.
  std::vector<std::string> Members() const;

  const std::string& synchronizer() const { return synchronizer_; }  // host:port
  // host:port of the ready daemon. Errors of daemon::ReadDaemonEndpoint.
  absl::StatusOr<std::string> FindAddress(const std::string& role, int64_t index) const;
  std::string run_dir() const { return options_.work_dir + "/run"; }

  // Asks all daemons to end, and waits. Returns the names of those that did not.
  std::vector<std::string> Leave(absl::Duration limit);

 private:
  explicit BenchRun(Options options);
  absl::Status StartSynchronizer();
  absl::Status StartDaemon(const std::string& name, const std::string& role, std::vector<std::string> more);
  // Waits for the endpoint that the process `name` writes below `folder` of the run directory; returns its address.
  absl::StatusOr<std::string> AwaitEndpoint(const std::string& name, const std::string& folder, const std::string& role,
                                            int64_t index);
  absl::Status Handle(const BenchEvent& event);
  absl::Status OnEnded(const std::string& name);
  void OnSync(const nlohmann::json& record, absl::Time when);

  const Options options_;
  std::string secret_;  // of the ranks of each replica, as an environment variable
  EventQueue events_;
  std::map<std::string, std::unique_ptr<BenchChild>> children_;
  std::unique_ptr<SyncWatch> watch_;
  std::string synchronizer_;
  std::set<std::string> expended_;
  std::set<std::string> ended_;
  std::vector<SyncSample> samples_;
  absl::Status trouble_;  // the first one while a process was removed; the benchmark cannot go on
};

}  // namespace syncopate::bench
