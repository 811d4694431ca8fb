#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
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

// The processes of one benchmark and their events so far: a real synchronizer, the sources, the receivers. Owned by one
// thread, which must live as long as the cast; all are killed with it. Every call that waits ends when the event has
// happened, or at its own limit or the benchmark's. It fails at once if a process ends unexpectedly: UNAVAILABLE reason
// PEER_DIED with the end of its log. DEADLINE_EXCEEDED reason DEADLINE says what did not come.
class BenchCast {
 public:
  struct Options {
    SyncCase sync_case;
    std::string binary_dir;  // of syncopate-synchronizer and syncopate-bench-peer
    std::string work_dir;    // for logs, state, sockets
    absl::Time deadline;     // of Clock::Real()
  };

  // Starts the synchronizer and asks for the machine's devices. Errors of BenchChild; FAILED_PRECONDITION reason
  // NO_GPU.
  static absl::StatusOr<std::unique_ptr<BenchCast>> Start(Options options);
  ~BenchCast();

  int devices() const { return devices_; }
  const std::string& machine() const { return machine_; }

  // Returns, like StartReplica, when the new processes have their weights and have joined.
  absl::Status StartSources();
  absl::Status StartReplica(int32_t replica);
  // Starts the processes and returns at once.
  absl::Status LaunchReplica(int32_t replica);
  absl::Status AwaitReady(const std::string& name, absl::Duration limit);
  // Restarts it with the same state and address.
  absl::Status RestartSynchronizer();

  // Waits until all sources have made the weights of `step`, tells them to stage those, and rank 0 to publish them.
  absl::Status Publish(int64_t step);
  // Waits until all ranks of these replicas serve `step`, their records are there, and the sources have reported the
  // cost.
  absl::StatusOr<std::vector<SyncSample>> AwaitCommits(int64_t step, const std::vector<int32_t>& replicas,
                                                       absl::Duration limit);
  // The machine's clock when the last rank of the replica served `step`; nullopt if it does not. The sync's record may
  // still be on its way, or have been lost with the synchronizer.
  std::optional<double> ServedAt(int64_t step, int32_t replica) const;
  // The staging times of `step`, by source.
  std::vector<double> StageSeconds(int64_t step) const;
  // The failed parts of attempts for `step`.
  std::vector<SyncSample> Failures(int64_t step) const;

  // Returns the answer to a command; the process has `limit` for it.
  absl::StatusOr<nlohmann::json> Ask(const std::string& name, nlohmann::json command, absl::Duration limit);
  absl::Status Send(const std::string& name, const nlohmann::json& command);

  // Handles events until `done`, which is called after each of them. `what` is for the error message.
  absl::Status Await(const std::function<bool()>& done, absl::Duration limit, const std::string& what);
  // Handles events for this duration.
  absl::Status Idle(absl::Duration duration);
  // The machine's clock at the first event `kind` of `name` (with this stage, if not empty); nullopt if there is none.
  std::optional<double> SaidAt(const std::string& name, const std::string& kind, const std::string& stage = "") const;
  void ForgetSayings() { sayings_.clear(); }

  // Allows this process to end, and lets no other process wait for it.
  void Expend(const std::string& name) { expended_.insert(name); }
  bool Ended(const std::string& name) const { return ended_.count(name) > 0; }
  void Signal(const std::string& name, int number);
  // Kills the process, waits until it is gone, and forgets it.
  void Remove(const std::string& name);
  bool Has(const std::string& name) const { return children_.count(name) > 0; }
  double StartedAt(const std::string& name) const;  // the machine's clock

  const std::string& synchronizer() const { return synchronizer_; }

  // Asks all processes to leave, and waits. Returns the names of those that did not end by themselves.
  std::vector<std::string> Leave(absl::Duration limit);

 private:
  struct Published {
    double begun = 0;  // the machine's clock when staging began
    double stage_seconds = 0;
    nlohmann::json digests = {};  // of that source
  };
  struct Saying {
    std::string from;
    std::string kind;
    std::string stage;
    double at = 0;
  };

  explicit BenchCast(Options options);
  absl::Status StartSynchronizer();
  absl::Status FindDevices();
  absl::Status StartPeer(const std::string& name, const std::string& argument);
  std::string PeerArgument(bool source, int32_t replica, int32_t rank) const;
  absl::Status Handle(const BenchEvent& event);
  absl::Status OnEnded(const std::string& name);
  void OnSync(const nlohmann::json& record, absl::Time when);
  const SyncSample* MakeCommit(int64_t step, int32_t replica) const;

  const Options options_;
  EventQueue events_;
  std::map<std::string, std::unique_ptr<BenchChild>> children_;
  std::unique_ptr<SyncWatch> watch_;
  std::string synchronizer_;  // host:port
  std::string start_;         // of the present sources
  std::string machine_;
  int devices_ = 0;
  std::set<std::string> expended_;
  std::set<std::string> ended_;
  std::map<std::string, nlohmann::json> answers_;                   // the last one of each process
  std::map<std::pair<int64_t, std::string>, Published> published_;  // by step and source
  std::map<std::pair<int64_t, std::string>, double> installed_;     // the machine's clock, by step and receiver
  std::map<int64_t, std::vector<SyncSample>> samples_;              // by step
  absl::Status trouble_;                                            // the first; the benchmark cannot go on
  std::vector<Saying> sayings_;                                     // in order
};

}  // namespace syncopate::bench
