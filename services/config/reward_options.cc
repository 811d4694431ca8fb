#include "services/config/reward_options.h"

#include "services/config/duration.h"

namespace syncopate::config {

rollouter::RewardParameters MakeRewardParameters(const v1::RunConfig& config) {
  const v1::RewardSection& reward = config.reward();
  return {.pattern = reward.pattern(), .format = reward.format(), .overlong_buffer = reward.overlong_buffer()};
}

rollouter::ScoringRules MakeScoringRules(const v1::RunConfig& config) {
  const v1::RewardSection& reward = config.reward();
  return {.timeout = CheckedDuration(reward.timeout()),
          .attempts = static_cast<int32_t>(reward.attempts()),
          .undecided_fails = reward.undecided() == "fail",
          .judge = reward.math_judge()};
}

}  // namespace syncopate::config
