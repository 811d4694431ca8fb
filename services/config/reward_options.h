#pragma once

#include "rollouter/reward/group_score.h"
#include "rollouter/reward/reward.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::config {

// The options of a rollouter's rewards, from a configuration that has passed its checks. Pure functions.
rollouter::RewardParameters MakeRewardParameters(const v1::RunConfig& config);
rollouter::ScoringRules MakeScoringRules(const v1::RunConfig& config);

}  // namespace syncopate::config
