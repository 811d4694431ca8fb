#pragma once

#include <memory>

#include "absl/time/time.h"
#include "base/policy_version.h"
#include "base/status.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::rollouter {

// How rank 0 of a replica has the other ranks change a version with it (joint_install.h). Thread-safe.
class InstallRanks {
 public:
  virtual ~InstallRanks() = default;
  // Waits until every other rank has its slice of the version, and holds them to it until EndClaim(). DEADLINE_EXCEEDED
  // (reason INSTALL_DEADLINE), after which nobody is held; UNAVAILABLE (reason RANK_LOST).
  virtual absl::Status Claim(const PolicyVersion& version, absl::Duration deadline) = 0;
  enum class End { kExchanged, kRelabelled, kGivenUp };
  virtual void EndClaim(const PolicyVersion& version, End end) = 0;
};

// Rank 0's weights as the target of weight syncs: `engine`'s, but that a version is installed when all ranks can. Borrows
// both.
std::unique_ptr<synchronizer::WeightTarget> MakeLeadingTarget(synchronizer::WeightTarget* engine, InstallRanks* ranks);

}  // namespace syncopate::rollouter
