#include "rollouter/engine/joint_install.h"

#include "base/status.h"

namespace syncopate::rollouter {

void JointInstall::Ready(int32_t rank, const PolicyVersion& version) {
  // A rank receives one version at a time, so it is no longer ready for another one.
  for (auto& [other, ranks] : ready_) ranks.erase(rank);
  ready_[version].insert(rank);
}

bool JointInstall::Withdraw(int32_t rank, const PolicyVersion& version) {
  // A claimed version may be exchanging now, so only EndClaim() may answer.
  if (claimed_ == version && !claimed_.IsNone()) return false;
  auto found = ready_.find(version);
  if (found != ready_.end()) found->second.erase(rank);
  return true;
}

bool JointInstall::AllReady(const PolicyVersion& version) const {
  auto found = ready_.find(version);
  return found != ready_.end() && static_cast<int32_t>(found->second.size()) == world_ - 1;
}

void JointInstall::Claim(const PolicyVersion& version) {
  SYNCOPATE_CHECK(AllReady(version));
  claimed_ = version;
}

void JointInstall::EndClaim(const PolicyVersion& version) {
  // The ranks never install an older version after a newer one.
  ready_.erase(ready_.begin(), ready_.upper_bound(version));
  if (claimed_ == version) claimed_ = PolicyVersion();
}

}  // namespace syncopate::rollouter
