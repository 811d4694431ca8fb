#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"
#include "ranks/rank_reports.h"
#include "rollouter/engine/engine_commands.h"
#include "rollouter/engine/joint_install.h"
#include "rollouter/engine/leading_target.h"
#include "services/rpc/rank_streams.h"
#include "syncopate/v1/replica.grpc.pb.h"

namespace syncopate::rollouterd {

// Rank 0's end of ReplicaService: one Attend stream for each other rank of this replica. Over them rank 0's engine
// sends its commands (engine_commands.h) and the ranks report on weight syncs (joint_install.h). Thread-safe. Must
// outlive the server that serves it, and the engine.
class ReplicaLeader final
    : public rpc::RankStreams<v1::ReplicaService, v1::ReplicaServiceAttendRequest, v1::ReplicaServiceAttendResponse>,
      public rollouter::EngineFollowers,
      public rollouter::InstallRanks {
 public:
  explicit ReplicaLeader(rpc::RankStreamsOptions options);

  absl::Status Send(const rollouter::EngineCommand& command) override;
  absl::Status AwaitObeyed(absl::Duration deadline) override;
  // Ends the replica: an OK `why` tells the other ranks to stop, an error ends them with that error. Idempotent.
  void Stop(const absl::Status& why);

  absl::Status Claim(const PolicyVersion& version, absl::Duration deadline) override;
  void EndClaim(const PolicyVersion& version, End end) override;
  int32_t world() const override { return others() + 1; }
  absl::Status AwaitStopAwaited(const PolicyVersion& version, absl::Duration deadline) override;
  void EndStopAwaited(const PolicyVersion& version) override;
  void SendWeightsLost(const PolicyVersion& version) override;
  void SetAbandonListener(AbandonListener listener) override;

 private:
  void HandleMessage(int32_t rank, const v1::ReplicaServiceAttendRequest& message) override;

  rollouter::JointInstall joint_ ABSL_GUARDED_BY(mutex_);
  rollouter::JointInstall stops_ ABSL_GUARDED_BY(mutex_);       // who waits for generation to stop; never claimed
  int64_t confirms_ ABSL_GUARDED_BY(mutex_) = 0;                // the number of the latest question of AwaitObeyed()
  RankReports<std::string> confirmed_ ABSL_GUARDED_BY(mutex_);  // by number: why a rank has no room; "": it has
  Mutex listener_mutex_;                                        // taken before mutex_
  AbandonListener on_abandoned_ ABSL_GUARDED_BY(listener_mutex_);
};

}  // namespace syncopate::rollouterd
