#pragma once

#include <string>
#include <utility>
#include <vector>

#include "services/config/rules.h"

namespace syncopate::config {

// Broken rules as they are found.
class Rules {
 public:
  void Expect(bool holds, std::vector<std::string> keys, const std::string& expected) {
    if (!holds) broken_.push_back({std::move(keys), expected});
  }
  void ExpectTogether(bool holds, std::vector<std::string> keys, const std::string& expected) {
    if (!holds) broken_.push_back({std::move(keys), expected, /*together=*/true});
  }
  std::vector<BrokenRule> TakeBroken() { return std::move(broken_); }

 private:
  std::vector<BrokenRule> broken_;
};

// What section reward says, against the rest of the run.
void CheckReward(const v1::RunConfig& config, Rules* rules);
// Where the worker is that section environment names.
void CheckEnvironment(const v1::RunConfig& config, Rules* rules);

}  // namespace syncopate::config
