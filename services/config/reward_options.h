#pragma once

#include "rollouter/reward/group_score.h"
#include "rollouter/reward/reward.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::config {

rollouter::RewardParameters MakeRewardParameters(const v1::RunConfig& config);
rollouter::ScoringRules MakeScoringRules(const v1::RunConfig& config);

}  // namespace syncopate::config
