#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "ranks/communicator.h"
#include "ranks/rank_reports.h"
#include "trainer/ranks/follower_stager.h"
#include "trainer/ranks/group_stager.h"
#include "trainer/ranks/leading_policy.h"
#include "trainer/staging/host_stager.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::twin {

// The ranks of a trainer as threads of one process: the caller's thread is rank 0, each other rank has a thread that
// carries out rank 0's commands as a process would. Not thread-safe, but for the interfaces.
class TrainerRanks final : public trainer::PolicyFollowers, public trainer::StagingReports {
 public:
  // `options` are those of one rank. Each rank stages `wire` for receivers of the layout `destination` in `slots`
  // slots.
  static absl::StatusOr<std::unique_ptr<TrainerRanks>> Create(const trainer::PolicyTrainer::Options& options,
                                                              int32_t world, const Manifest& wire, int slots,
                                                              const std::string& destination);
  ~TrainerRanks() override;  // ends the threads

  int32_t world() const { return static_cast<int32_t>(ranks_.size()); }
  // The policy of all ranks.
  trainer::Policy& policy() { return *policy_; }
  trainer::WeightStager& stager() { return *stager_; }
  // The store of one rank's staged versions.
  synchronizer::WeightStore* store(int32_t rank) { return ranks_[static_cast<size_t>(rank)].stager->store(); }

  // Memory of its send slots.
  int64_t send_bytes(int32_t rank) const { return ranks_[static_cast<size_t>(rank)].stager->bytes(); }

  absl::Status Send(const trainer::PolicyCommand& command, const std::vector<const TrajectoryGroup*>& groups) override;
  absl::StatusOr<OfRanks> AwaitStaged(const PolicyVersion& version) override;

 private:
  struct Rank {
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<trainer::PolicyTrainer> policy;
    std::unique_ptr<trainer::WeightStager> stager;
    std::unique_ptr<trainer::FollowerStager> stagings;  // of `stager`; null on rank 0
  };
  struct Order {
    trainer::PolicyCommand command;
    std::vector<TrajectoryGroup> groups;
  };

  TrainerRanks() = default;
  void Follow(int32_t rank);
  absl::Status Obey(Rank& rank, const Order& order);
  // The next order of a rank; none: the end.
  std::optional<Order> Take(int32_t rank);

  std::vector<Rank> ranks_;  // rank 0's stager is stager_
  trainer::Policy* policy_ = nullptr;
  trainer::WeightStager* stager_ = nullptr;
  std::unique_ptr<trainer::LeadingPolicy> leading_;
  Mutex mutex_;
  std::vector<std::deque<Order>> orders_ ABSL_GUARDED_BY(mutex_);  // by rank
  RankReports<absl::StatusOr<trainer::WeightStager::Staged>> staged_ ABSL_GUARDED_BY(mutex_);
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace syncopate::twin
