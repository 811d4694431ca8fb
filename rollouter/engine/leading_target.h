#pragma once

#include <memory>

#include "absl/time/time.h"
#include "base/policy_version.h"
#include "base/status.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::rollouter {

// Lets rank 0 of a replica change a version together with the other ranks (joint_install.h). Thread-safe.
class InstallRanks {
 public:
  virtual ~InstallRanks() = default;
  // Waits until every other rank has its slice of the version; after OK no rank may withdraw until EndClaim().
  // DEADLINE_EXCEEDED (reason INSTALL_DEADLINE): all ranks are released; UNAVAILABLE (reason RANK_LOST).
  virtual absl::Status Claim(const PolicyVersion& version, absl::Duration deadline) = 0;
  enum class End { kExchanged, kRelabelled, kGivenUp };
  // Ends the claim and tells the other ranks the outcome.
  virtual void EndClaim(const PolicyVersion& version, End end) = 0;
};

// Creates rank 0's target of weight syncs: forwards to `engine`, but installs a version only when all ranks can.
// Borrows both.
std::unique_ptr<synchronizer::WeightTarget> MakeLeadingTarget(synchronizer::WeightTarget* engine, InstallRanks* ranks);

}  // namespace syncopate::rollouter
