#pragma once

#include "rollouter/reward/group_score.h"
#include "rollouter/reward/reward.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::config {

rollouter::RewardParameters RewardParametersOf(const v1::RunConfig& config);
rollouter::ScoringRules ScoringRulesOf(const v1::RunConfig& config);

}  // namespace syncopate::config
