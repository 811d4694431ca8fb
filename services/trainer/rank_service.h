#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "services/rpc/rank_streams.h"
#include "syncopate/v1/rank.grpc.pb.h"
#include "trainer/checkpoint/rank_saves.h"
#include "trainer/ranks/leading_policy.h"

namespace syncopate::trainerd {

// For a collective: ranks compute as long as each other, but for their luck with memory and disks. That a rank is gone
// is known long before, from its stream.
inline constexpr absl::Duration kRankCallDeadline = absl::Minutes(1);
// For what another rank writes of a checkpoint, once rank 0 has written its own: a slow disk is slow for all.
inline constexpr absl::Duration kRankSaveDeadline = absl::Minutes(30);

// Rank 0's end of RankService: one Attend stream for each other rank, over which it leads them (rank_streams.h).
class RankServiceImpl final : public rpc::RankStreams<v1::RankService, v1::AttendRequest, v1::AttendResponse>,
                              public trainer::PolicyFollowers,
                              public trainer::RankSaves {
 public:
  explicit RankServiceImpl(rpc::RankStreamsOptions options);

  absl::Status lost() const override { return RankStreams::lost(); }
  absl::Status Send(const trainer::PolicyCommand& command, const std::vector<const TrajectoryGroup*>& groups) override;
  absl::StatusOr<trainer::CheckpointStore::Files> AwaitSaved(const std::string& folder) override;
  // The run is over: complete, stopped (OK), or with an error that the others end with too. Nothing is lost from here on.
  // Idempotent.
  void Stop(const absl::Status& why, bool completed);

 private:
  void HandleMessage(int32_t rank, const v1::AttendRequest& message) override;

  // By folder: what ranks have said of it. Forgotten by AwaitSaved().
  std::map<std::string, std::map<int32_t, absl::StatusOr<trainer::CheckpointStore::Files>>> saved_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::trainerd
