#include "rollouter/engine/joint_pause.h"

namespace syncopate::rollouter {

void JointPause::Begin(const PolicyVersion& version) {
  End();
  version_ = version;
}

JointPause::Outcome JointPause::Stand() {
  standing_ = true;
  return Decide();
}

JointPause::Outcome JointPause::GiveUp(int32_t rank, const PolicyVersion& version, bool overwritten) {
  if (version_.IsNone() || version != version_) return Outcome::kOpen;
  given_up_.insert(rank);
  overwritten_ |= overwritten;
  return Decide();
}

JointPause::Outcome JointPause::Decide() {
  // Until the engine stands, it could neither lose its weights nor go on.
  if (!standing_) return Outcome::kOpen;
  const bool all = static_cast<int32_t>(given_up_.size()) == world_;
  if (!overwritten_ && !all) return Outcome::kOpen;
  const Outcome outcome = overwritten_ ? Outcome::kLost : Outcome::kGoOn;
  End();
  return outcome;
}

void JointPause::End() {
  version_ = PolicyVersion();
  standing_ = overwritten_ = false;
  given_up_.clear();
}

}  // namespace syncopate::rollouter
