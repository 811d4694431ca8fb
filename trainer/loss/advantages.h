#pragma once

#include <vector>

#include "base/trajectory.h"

namespace syncopate::trainer {

// Of the group's samples, in their order.
std::vector<double> RewardsOf(const TrajectoryGroup& group);

// Group-relative advantages of one group's rewards: (r - mean) / (std + eps), std unbiased (GRPO, arXiv 2402.03300,
// with verl's eps). A group of one, or one whose rewards are all equal, carries no signal: zeros.
std::vector<double> GrpoAdvantages(const std::vector<double>& rewards, double eps = 1e-6);

// All rewards of the group are equal (also for a group of one): it has no gradient.
bool HasZeroVariance(const std::vector<double>& rewards);

}  // namespace syncopate::trainer
