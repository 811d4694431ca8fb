#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status.h"
#include "services/rpc/bidi_stream.h"
#include "syncopate/v1/rank.grpc.pb.h"
#include "trainer/checkpoint/rank_saves.h"
#include "trainer/ranks/leading_policy.h"

namespace syncopate::trainerd {

// How long the ranks of a trainer wait for each other to come, on both sides.
inline constexpr absl::Duration kRanksMeetWithin = absl::Minutes(2);
// For a collective: ranks compute as long as each other, but for their luck with memory and disks. That a rank is gone
// is known long before, from its stream.
inline constexpr absl::Duration kRankCallDeadline = absl::Minutes(1);
// For what another rank writes of a checkpoint, once rank 0 has written its own: a slow disk is slow for all.
inline constexpr absl::Duration kRankSaveDeadline = absl::Minutes(30);

// Rank 0's end of RankService: one Attend stream for each other rank, over which it leads them. A rank that disagrees
// about anything, or whose stream ends or is silent, is the end of the whole group: `on_lost` is told once, why.
// Thread-safe. Must outlive the server that serves it.
class RankServiceImpl final : public v1::RankService::CallbackService,
                              public trainer::RankFollowers,
                              public trainer::RankSaves {
 public:
  struct Options {
    int32_t world = 1;
    // What every rank must say of itself.
    std::string config_digest;
    uint64_t manifest_fingerprint = 0;
    std::string build;
    std::string gpu;  // that rank 0 computes on; empty: on the CPU. Each rank must have another one
    // From gRPC's threads, must not block: UNAVAILABLE (reason RANK_LOST), FAILED_PRECONDITION (reason RANK_MISMATCH).
    std::function<void(const absl::Status&)> on_lost;
    absl::Duration silent_after = absl::Seconds(5);  // five heartbeats
    absl::Duration save_deadline = kRankSaveDeadline;
  };
  explicit RankServiceImpl(Options options) : options_(std::move(options)), gpus_{{0, options_.gpu}} {}

  grpc::ServerBidiReactor<v1::AttendRequest, v1::AttendResponse>* Attend(grpc::CallbackServerContext* context) override;

  // Waits until all other ranks have come. What on_lost was told; RANK_LOST, naming those that are missing, after
  // `deadline`; else the error of `go_on`, which is asked again and again.
  absl::Status AwaitRanks(absl::Duration deadline, const std::function<absl::Status()>& go_on);
  // Tells all of them; once, before the first Send().
  absl::Status Welcome(const v1::AttendResponse::Welcome& welcome);
  absl::Status Send(const trainer::RankCommand& command, const std::vector<const TrajectoryGroup*>& groups) override;
  absl::StatusOr<trainer::CheckpointStore::Files> AwaitSaved(const std::string& folder) override;
  // OK, or why the group is at its end.
  absl::Status lost() const override;
  // The run is over: complete, stopped (OK), or with an error that the others end with too. Nothing is lost from here on.
  // Idempotent.
  void Stop(const absl::Status& why, bool completed);

 private:
  using Stream = rpc::ServerBidiStream<v1::AttendRequest, v1::AttendResponse>;
  class Session;

  // Of a stream's first message.
  absl::Status Admit(const v1::AttendRequest& first, const std::shared_ptr<Stream>& stream);
  void Leave(int32_t rank, const absl::Status& why);
  void Lose(const absl::Status& why);
  void NoteSaved(int32_t rank, const v1::AttendRequest::Saved& saved);
  absl::Status Write(const v1::AttendResponse& message);
  std::string Missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  std::map<int32_t, std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);  // by rank
  std::map<int32_t, std::string> gpus_ ABSL_GUARDED_BY(mutex_);                 // by rank
  // By folder: what ranks have said of it. Forgotten by AwaitSaved().
  std::map<std::string, std::map<int32_t, absl::StatusOr<trainer::CheckpointStore::Files>>> saved_
      ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::trainerd
