#pragma once

#include <string>
#include <utility>
#include <vector>

#include "services/config/rules.h"

namespace syncopate::config {

// Collects broken rules while they are found.
class Rules {
 public:
  void Expect(bool is_met, std::vector<std::string> keys, const std::string& expected) {
    if (!is_met) broken_.push_back({std::move(keys), expected});
  }
  void ExpectTogether(bool is_met, std::vector<std::string> keys, const std::string& expected) {
    if (!is_met) broken_.push_back({std::move(keys), expected, /*together=*/true});
  }
  std::vector<BrokenRule> TakeBroken() { return std::move(broken_); }

 private:
  std::vector<BrokenRule> broken_;
};

// Checks the section reward against the rest of the run.
void CheckReward(const v1::RunConfig& config, Rules* rules);
// Checks `formula`, the reward of the set `set` of eval.sets, against the rest of the run.
void CheckSetReward(const std::string& set, const std::string& formula, const v1::RunConfig& config, Rules* rules);
// Checks that the section environment says where its worker is.
void CheckEnvironment(const v1::RunConfig& config, Rules* rules);

}  // namespace syncopate::config
