#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "ranks/rank_reports.h"
#include "services/rpc/rank_streams.h"
#include "syncopate/v1/rank.grpc.pb.h"
#include "trainer/checkpoint/rank_saves.h"
#include "trainer/ranks/group_stager.h"
#include "trainer/ranks/leading_policy.h"

namespace syncopate::trainerd {

// Deadline of a collective: ranks compute for equally long, except for differences of memory and disks. A lost rank is
// noticed long before, by the end of its stream.
inline constexpr absl::Duration kRankCallDeadline = absl::Minutes(1);
// Deadline for another rank's part of a checkpoint or an export, after rank 0 has written its own: a slow disk is slow
// for all ranks.
inline constexpr absl::Duration kRankSaveDeadline = absl::Minutes(30);
// Deadline for another rank's staging: a copy within its memory, and its digests.
inline constexpr absl::Duration kRankStageDeadline = absl::Minutes(1);

// Rank 0's end of RankService: one Attend stream for each other rank, over which it leads them (rank_streams.h).
class RankServiceImpl final : public rpc::RankStreams<v1::RankService, v1::AttendRequest, v1::AttendResponse>,
                              public trainer::PolicyFollowers,
                              public trainer::StagingReports,
                              public trainer::RankSaves {
 public:
  // `on_refused`: called on gRPC's threads, must not block, when the synchronizer has refused or evicted another rank,
  // or that rank has lost it, with that rank's error. The rank goes on carrying out orders until it is dismissed.
  RankServiceImpl(rpc::RankStreamsOptions options, std::function<void(const absl::Status&)> on_refused);

  absl::Status lost() const override { return RankStreams::lost(); }
  absl::Status Send(const trainer::PolicyCommand& command, const std::vector<const TrajectoryGroup*>& groups) override;
  absl::StatusOr<trainer::CheckpointStore::Files> AwaitSaved(const std::string& folder) override;
  absl::StatusOr<OfRanks> AwaitStaged(const PolicyVersion& version) override;
  // Ends the run for all ranks: completed, stopped (OK), or with an error that they end with too. A rank that leaves
  // afterwards is not lost. Idempotent.
  void Stop(const absl::Status& why, bool completed);

 private:
  void HandleMessage(int32_t rank, const v1::AttendRequest& message) override;
  void HandleSaved(int32_t rank, const v1::AttendRequest::Saved& saved);
  void HandleStaged(int32_t rank, const v1::AttendRequest::Staged& staged);

  using SavedReports = RankReports<absl::StatusOr<trainer::CheckpointStore::Files>>;

  using StagedReports = RankReports<absl::StatusOr<trainer::WeightStager::Staged>>;

  const std::function<void(const absl::Status&)> on_refused_;
  SavedReports saved_ ABSL_GUARDED_BY(mutex_);    // keyed by folder
  StagedReports staged_ ABSL_GUARDED_BY(mutex_);  // keyed by version
};

}  // namespace syncopate::trainerd
