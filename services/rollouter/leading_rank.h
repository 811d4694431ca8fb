#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "model/model_config.h"
#include "services/daemon/daemon.h"
#include "services/rollouter/replica_leader.h"
#include "services/rollouter/rollout_device.h"

namespace syncopate::rollouterd {

// Rank 0 of a replica of several ranks, beside its RolloutNode: the server whose streams the other ranks attend, and
// the communicator of all ranks. Must outlive the node.
class LeadingRank {
 public:
  // Listens at rollouter.ranks_listen, announces that in the run directory, and waits for the other ranks, which then
  // wait for Connect(). `config` must include what the trainer said of the model; `shape` must be divisible among the
  // ranks. No rank allocates anything on a device. RANK_LOST, RANK_MISMATCH, CANCELLED (reason STOPPED); errors of
  // FindRolloutPlace and of servers.
  static absl::StatusOr<std::unique_ptr<LeadingRank>> Gather(daemon::Daemon* daemon, const v1::RunConfig& config,
                                                             const model::ModelConfig& shape);
  // Connects the communicator of all ranks, which from here on take memory of their devices. Call it once. Errors as
  // Gather().
  absl::Status Connect();
  ~LeadingRank();
  LeadingRank(const LeadingRank&) = delete;
  LeadingRank& operator=(const LeadingRank&) = delete;

  // The devices of the other ranks that they may share with the trainer (run.share_gpu); empty: they share none.
  std::set<std::string> cards() const { return leader_->cards(); }
  // OK while no rank is lost; else why the replica is at its end.
  absl::Status lost() const { return leader_->lost(); }
  // Call after Connect().
  const ReplicaPart& part() const { return *part_; }
  ReplicaLeader* leader() { return leader_.get(); }
  // Tells the other ranks that the replica stops, and why. Idempotent.
  void Stop(const absl::Status& why) { leader_->Stop(why); }

 private:
  explicit LeadingRank(daemon::Daemon* daemon) : daemon_(daemon) {}
  absl::Status Listen(const v1::RunConfig& config, uint64_t manifest_fingerprint);
  absl::StatusOr<std::unique_ptr<Communicator>> Meet();
  absl::Status GoOn() const;

  daemon::Daemon* const daemon_;
  int32_t world_ = 1;
  RankPlace place_;
  std::optional<rollouter::RankSlice> slice_;  // until Connect()
  Mutex mutex_;
  Communicator* ranks_ ABSL_GUARDED_BY(mutex_) = nullptr;  // owned by part_; null until the ranks have met
  std::unique_ptr<ReplicaPart> part_;
  std::unique_ptr<ReplicaLeader> leader_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace syncopate::rollouterd
