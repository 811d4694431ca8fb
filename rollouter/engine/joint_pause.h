#pragma once

#include <cstdint>
#include <set>

#include "base/policy_version.h"

namespace syncopate::rollouter {

// Decides what becomes of a pause in which all ranks of a replica receive a version into their live weights. This is
// rank 0's state; sans-IO. Not thread-safe.
//
//   none --Begin()--> beginning --Stand()--> standing --all ranks give up, none has overwritten--> none, kGoOn
//                         |                           --a rank gives up that has overwritten-----> none, kLost
//                         '--End()--> none            --End(): the version was installed--> none
//
// A rank that gives up waits for the others: while one of them may still receive, the weights of the ranks may be
// parts of different versions, and generation must not go on.
class JointPause {
 public:
  enum class Outcome : uint8_t { kOpen, kGoOn, kLost };

  explicit JointPause(int32_t world) : world_(world) {}

  // Rank 0's engine is asked to stop. Ranks may give up from here on.
  void Begin(const PolicyVersion& version);
  // The engine has stopped. kLost if a rank gave up after overwriting weights meanwhile.
  Outcome Stand();
  // `rank` (0 included) receives the version no longer. Ignored for any version but the present one.
  Outcome GiveUp(int32_t rank, const PolicyVersion& version, bool overwritten);
  // The engine could not be stopped, or the version was installed.
  void End();

  const PolicyVersion& version() const { return version_; }  // none: there is no pause

 private:
  Outcome Decide();

  const int32_t world_;
  PolicyVersion version_;
  bool standing_ = false;
  bool overwritten_ = false;    // a rank gave up that had overwritten weights
  std::set<int32_t> given_up_;  // ranks
};

}  // namespace syncopate::rollouter
