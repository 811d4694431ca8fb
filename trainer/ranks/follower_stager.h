#pragma once

#include <functional>
#include <utility>

#include "base/policy_version.h"
#include "base/status.h"
#include "base/worker.h"
#include "trainer/staging/weight_stager.h"

namespace syncopate::trainer {

// Staging on a rank that follows rank 0: launched when rank 0 says so, and awaited by a thread of its own, while the
// rank carries out rank 0's next commands.
class FollowerStager {
 public:
  // Reports to rank 0 what became of a staging, once for each. Called by that thread, or within Stage() if nothing
  // could be launched.
  using Tell = std::function<void(const PolicyVersion& version, const absl::StatusOr<WeightStager::Staged>& staged)>;

  // `stager` is borrowed and of this rank's shard.
  FollowerStager(WeightStager* stager, Tell tell) : stager_(stager), tell_(std::move(tell)) {}

  // Called as WeightStager::Launch is, by the thread that owns the policy. Rank 0 orders the next one when it has heard of this
  // one.
  void Stage(const PolicyVersion& version) {
    const absl::Status launched = stager_->Launch(version);
    if (!launched.ok()) return tell_(version, launched);
    const bool posted = thread_.Post([this, version] { tell_(version, stager_->Await()); });
    SYNCOPATE_CHECK(posted);
  }

 private:
  WeightStager* const stager_;
  const Tell tell_;
  Worker thread_;  // last: it uses all of the above
};

}  // namespace syncopate::trainer
