#include "trainer/loss/advantages.h"

#include <algorithm>
#include <cmath>

namespace syncopate::trainer {

std::vector<double> RewardsOf(const TrajectoryGroup& group) {
  std::vector<double> rewards;
  for (const Trajectory& sample : group.samples) rewards.push_back(sample.reward);
  return rewards;
}

bool HasZeroVariance(const std::vector<double>& rewards) {
  return std::all_of(rewards.begin(), rewards.end(), [&](double reward) { return reward == rewards.front(); });
}

std::vector<double> GrpoAdvantages(const std::vector<double>& rewards, double eps) {
  std::vector<double> advantages(rewards.size(), 0.0);
  if (rewards.size() < 2 || HasZeroVariance(rewards)) return advantages;
  double mean = 0;
  for (double reward : rewards) mean += reward / static_cast<double>(rewards.size());
  double squares = 0;
  for (double reward : rewards) squares += (reward - mean) * (reward - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(rewards.size() - 1));
  for (size_t i = 0; i < rewards.size(); ++i) advantages[i] = (rewards[i] - mean) / (deviation + eps);
  return advantages;
}

}  // namespace syncopate::trainer
