#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "base/policy_version.h"

namespace syncopate::rollouter {

// Decides when the ranks of a replica may install a version together: each rank receives and verifies its own slice,
// and only rank 0 decides when the ranks exchange. This is rank 0's state; sans-IO. Not thread-safe.
//
//   a version    gathering --every other rank is ready, Claim()--> claimed --EndClaim()--> gone
//
// While a version is gathering, a rank may withdraw and is released at once. Once it is claimed, an exchange may be in
// progress: a rank that withdraws is answered by EndClaim(), and has by then either exchanged the version or is
// released.
class JointInstall {
 public:
  explicit JointInstall(int32_t world) : world_(world) {}

  // Rank `rank` (1 to world - 1) has its slice of the version in its shadow.
  void Ready(int32_t rank, const PolicyVersion& version);
  // Rank `rank` withdraws. True: release it now; false: EndClaim() answers it.
  bool Withdraw(int32_t rank, const PolicyVersion& version);
  // Whether all other ranks are ready for the version.
  bool AllReady(const PolicyVersion& version) const;
  // After this no rank is released before EndClaim(). Precondition: AllReady().
  void Claim(const PolicyVersion& version);
  // The version serves on all ranks, or was given up. Forgets it and all older versions.
  void EndClaim(const PolicyVersion& version);

 private:
  const int32_t world_;
  std::map<PolicyVersion, std::set<int32_t>> ready_;  // the ready ranks of each version
  PolicyVersion claimed_;                             // none: no version is claimed
};

}  // namespace syncopate::rollouter
