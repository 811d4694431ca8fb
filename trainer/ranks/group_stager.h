#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "trainer/ranks/leading_policy.h"
#include "trainer/staging/weight_stager.h"

namespace syncopate::trainer {

// The results of staging a version on the other ranks, as rank 0 receives them.
class StagingReports {
 public:
  using OfRanks = std::map<int32_t, absl::StatusOr<WeightStager::Staged>>;  // keyed by rank

  virtual ~StagingReports() = default;
  // Waits until each of the others has reported on its staging of `version`. UNAVAILABLE (reason RANK_LOST) if one is
  // gone; DEADLINE_EXCEEDED (reason STAGE_LATE) if one says nothing. For any thread.
  virtual absl::StatusOr<OfRanks> AwaitStaged(const PolicyVersion& version) = 0;
};

// Staging on all ranks of a trainer, as rank 0 sees it: each rank stages its own shard when it is told to, and the
// version's digests are those of all ranks, in their order. Rank 0 publishes the version whole.
class GroupStager final : public WeightStager {
 public:
  // `mine`: the stager of rank 0's own shard.
  explicit GroupStager(std::unique_ptr<WeightStager> mine) : mine_(std::move(mine)) {}
  // Before the first Launch; both are borrowed.
  void Lead(PolicyFollowers* followers, StagingReports* reports) {
    followers_ = followers;
    reports_ = reports;
  }

  const Manifest& manifest() const override { return mine_->manifest(); }
  // The errors of PolicyFollowers::Send too.
  absl::Status Launch(const PolicyVersion& version) override;
  // `seconds` are the slowest rank's. An error of a rank names the rank; NON_FINITE on any rank is the error of all.
  // The errors of StagingReports too.
  absl::StatusOr<Staged> Await() override;
  // Rank 0's wait only: the wait of another rank delays rank 0 in the exchanges of its step.
  double TakeWaitSeconds() override { return mine_->TakeWaitSeconds(); }
  // Says whether rank 0's own slots have left. The other ranks are told once after each Launch, and go on by
  // themselves.
  absl::StatusOr<bool> LeaveDevice() override;
  synchronizer::WeightStore* store() override { return mine_->store(); }
  std::string layout() const override { return mine_->layout(); }
  int64_t bytes() const override { return mine_->bytes(); }

 private:
  const std::unique_ptr<WeightStager> mine_;
  PolicyFollowers* followers_ = nullptr;
  StagingReports* reports_ = nullptr;
  PolicyVersion version_;      // of the last Launch
  bool others_leave_ = false;  // the other ranks were told so since then
};

}  // namespace syncopate::trainer
