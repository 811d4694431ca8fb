#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace syncopate::rollouter {

// What a reward is computed from. The stop token, if there is one, is the last of `response`.
struct RewardInput {
  const std::vector<int32_t>& prompt_ids;
  const std::vector<int32_t>& answer_ids;  // the right answer, stop token included; may be empty
  const std::vector<int32_t>& response;    // what was generated
};

// A pure function of its input, safe to call from any thread.
using RewardFunction = std::function<float(const RewardInput&)>;

// Rewards by name. A lease names the reward it wants; the rollouter that generates also scores. Filled before it is
// handed to whoever scores, then read only, so that reading needs no lock.
class RewardRegistry {
 public:
  // The built-in ones:
  //   dense  share of the answer's positions that the response has right
  //   exact  1 if the response equals the answer, else 0
  static RewardRegistry BuiltIn();

  // ALREADY_EXISTS (reason REWARD_EXISTS) if the name is taken.
  absl::Status Register(const std::string& name, RewardFunction function);
  // NOT_FOUND (reason UNKNOWN_REWARD) naming those that are known. The pointer is good for the registry's life.
  absl::StatusOr<const RewardFunction*> Find(const std::string& name) const;

 private:
  std::map<std::string, RewardFunction> functions_;
};

}  // namespace syncopate::rollouter
