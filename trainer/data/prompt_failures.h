#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "trainer/data/records.h"
#include "trainer/data/rollout_sessions.h"

namespace syncopate::trainer {

// Counts which rollouters failed at which prompt, and decides when to give the prompt up: when `most` attempts at it
// have failed and the cause is not a single rollouter. The cause is the prompt if two rollouters failed at it, if the
// one that failed has answered other prompts since its first failure, or if each time the reward failed and the reward
// of some other group did not. Plain state, no lock.
class PromptFailures {
 public:
  explicit PromptFailures(int32_t most) : most_(most) {}

  // What has failed, and how the run's other groups fare.
  struct Fault {
    bool is_reward = false;           // its reward
    bool others_were_judged = false;  // some group has got its rewards since this trainer started
  };
  // One more attempt has failed. True if the prompt is to be given up.
  bool Add(const GroupId& prompt, const RolloutSession& failed_by, const Fault& fault);
  // Call when the prompt is answered or given up.
  void Forget(const GroupId& prompt) { failures_.erase(prompt); }
  bool HasFailed(const GroupId& prompt, const std::string& replica) const;

 private:
  // The failures at one prompt.
  struct Failures {
    int32_t count = 0;
    bool rewards_alone = true;            // each of them
    std::set<std::string> replicas = {};  // whose
    SessionId session = 0;                // the latest one's
    int64_t accepted = 0;                 // groups of that session when it failed for the first time
  };

  const int32_t most_;
  std::map<GroupId, Failures> failures_;
};

}  // namespace syncopate::trainer
