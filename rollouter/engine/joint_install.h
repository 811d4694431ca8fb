#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "base/policy_version.h"

namespace syncopate::rollouter {

// When the ranks of a replica may install a version together: each receives and verifies its own slice, rank 0 alone
// decides when they change. What rank 0 knows; sans-IO. Not thread-safe.
//
//   a version    gathering --every other rank is ready, Claim()--> claimed --EndClaim()--> gone
//
// While it is gathering a rank may withdraw, and is released at once. Once it is claimed an exchange may be under way: a
// rank that wants to withdraw is answered when that is settled, and by then has either exchanged or is released.
class JointInstall {
 public:
  explicit JointInstall(int32_t world) : world_(world) {}

  // Rank 1 to world - 1 has its slice of the version in its shadow.
  void Ready(int32_t rank, const PolicyVersion& version);
  // That rank gives up. True: it is to be released now; false: EndClaim() answers it.
  bool Withdraw(int32_t rank, const PolicyVersion& version);
  // Whether all others are ready for it.
  bool AllReady(const PolicyVersion& version) const;
  // From here on nobody is released before EndClaim(). Precondition: AllReady().
  void Claim(const PolicyVersion& version);
  // It serves on all ranks, or has been given up; older versions are forgotten too.
  void EndClaim(const PolicyVersion& version);

 private:
  const int32_t world_;
  std::map<PolicyVersion, std::set<int32_t>> ready_;  // ranks
  PolicyVersion claimed_;                             // none: nothing is
};

}  // namespace syncopate::rollouter
