#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "trainer/data/records.h"
#include "trainer/data/rollout_sessions.h"

namespace syncopate::trainer {

// Who has failed at which prompt, and when that is enough. A prompt is given up when `most` attempts at it have failed
// and it is not one rollouter that fails: either two have failed at it, or the one has answered others since it failed
// for the first time. Plain state, no lock.
class PromptFailures {
 public:
  explicit PromptFailures(int32_t most) : most_(most) {}

  // One more attempt has failed. True if the prompt is to be given up.
  bool Add(const GroupId& prompt, const RolloutSession& failed_by);
  // It is answered or given up.
  void Forget(const GroupId& prompt) { failures_.erase(prompt); }
  bool HasFailed(const GroupId& prompt, const std::string& replica) const;

 private:
  // Of one prompt.
  struct Failures {
    int32_t count = 0;
    std::set<std::string> replicas = {};  // whose
    SessionId session = 0;                // the latest one's
    int64_t accepted = 0;                 // groups of that session when it failed for the first time
  };

  const int32_t most_;
  std::map<GroupId, Failures> failures_;
};

}  // namespace syncopate::trainer
