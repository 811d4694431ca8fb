#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status.h"
#include "rollouter/engine/joint_install.h"
#include "rollouter/engine/rank_commands.h"
#include "services/rpc/rank_streams.h"
#include "synchronizer/transport/weight_target.h"
#include "syncopate/v1/replica.grpc.pb.h"

namespace syncopate::rollouterd {

// Rank 0's end of ReplicaService: one Attend stream for each other rank of this replica, over which its engine leads them
// (rank_commands.h), and what they say of weight syncs (joint_install.h). Thread-safe. Must outlive the server that serves
// it, and the engine.
class ReplicaLeader final : public v1::ReplicaService::CallbackService, public rollouter::RankFollowers {
 public:
  explicit ReplicaLeader(const rpc::RankStreamsOptions& options);

  grpc::ServerBidiReactor<v1::ReplicaServiceAttendRequest, v1::ReplicaServiceAttendResponse>* Attend(
      grpc::CallbackServerContext* context) override {
    return streams_.Attend(context);
  }

  // As RankStreams.
  absl::Status AwaitRanks(absl::Duration deadline, const std::function<absl::Status()>& go_on) {
    return streams_.AwaitRanks(deadline, go_on);
  }
  absl::Status lost() const { return streams_.lost(); }
  // Tells all of them; once, before the first Send().
  absl::Status Welcome(const v1::ReplicaServiceAttendResponse::Welcome& welcome);
  absl::Status Send(const rollouter::RankCommand& command) override;
  // The replica stops: well, or with an error that the others end with too. Idempotent.
  void Stop(const absl::Status& why);

  // Waits until every other rank has its slice of the version, and holds them to it until Settle(). DEADLINE_EXCEEDED
  // (reason INSTALL_DEADLINE); RANK_LOST.
  absl::Status Claim(const PolicyVersion& version, absl::Duration deadline);
  enum class End { kExchanged, kRelabelled, kGivenUp };
  void Settle(const PolicyVersion& version, End end);

 private:
  // `options` with what wakes Claim().
  rpc::RankStreamsOptions Watched(rpc::RankStreamsOptions options);
  void Hear(int32_t rank, const v1::ReplicaServiceAttendRequest& message);

  Mutex mutex_;
  rollouter::JointInstall joint_ ABSL_GUARDED_BY(mutex_);
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // a rank is lost
  rpc::RankStreams<v1::ReplicaServiceAttendRequest, v1::ReplicaServiceAttendResponse> streams_;
};

// Rank 0's weights as the target of weight syncs: `engine`'s, but that a version is installed when all ranks can. Borrows
// both.
std::unique_ptr<synchronizer::WeightTarget> MakeLeadingTarget(synchronizer::WeightTarget* engine,
                                                              ReplicaLeader* leader);

}  // namespace syncopate::rollouterd
