#include "trainer/data/sampled_figures.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace syncopate::trainer {
namespace {

constexpr double kNormalQuantile = 1.959963984540054;  // two sides, 95 %

}  // namespace

MeanOverPrompts AverageOverPrompts(const std::vector<double>& values) {
  SYNCOPATE_CHECK(!values.empty());
  const auto count = static_cast<double>(values.size());
  MeanOverPrompts average;
  for (const double value : values) average.mean += value;
  average.mean /= count;
  if (values.size() < 2) return average;
  double squares = 0;
  for (const double value : values) squares += (value - average.mean) * (value - average.mean);
  average.interval = kNormalQuantile * std::sqrt(squares / (count - 1) / count);
  return average;
}

double EstimatePassAtK(int64_t answers, int64_t right, int64_t k) {
  SYNCOPATE_CHECK(k >= 1 && k <= answers && right >= 0 && right <= answers);
  // The quotient of the binomial coefficients as a product: they would overflow.
  double none = 1;
  for (int64_t i = answers - right + 1; i <= answers; ++i) {
    none *= std::max(0.0, 1 - static_cast<double>(k) / static_cast<double>(i));
  }
  return 1 - none;
}

double MajorityIsRight(const PromptTally& prompt) {
  int64_t most = 0;
  for (const auto& [answer, votes] : prompt.votes) most = std::max(most, votes.all);
  double all = 0, right = 0;
  for (const auto& [answer, votes] : prompt.votes) {
    if (votes.all < most) continue;
    all += static_cast<double>(votes.all);
    right += static_cast<double>(votes.right);
  }
  return all > 0 ? right / all : 0;
}

void AddSampledMeans(const std::vector<PromptTally>& prompts, SampledFigures* figures) {
  std::vector<double> rewards, majorities;
  bool any_votes = false;
  for (const PromptTally& prompt : prompts) {
    if (prompt.answers == 0) continue;
    rewards.push_back(prompt.reward / static_cast<double>(prompt.answers));
    majorities.push_back(MajorityIsRight(prompt));
    any_votes |= !prompt.votes.empty();
  }
  if (rewards.empty()) return;
  figures->reward = AverageOverPrompts(rewards);
  if (any_votes) figures->majority = AverageOverPrompts(majorities);
  const int64_t samples = figures->samples;
  for (int64_t k = 1; k <= samples; k = k < samples ? std::min(2 * k, samples) : samples + 1) {
    std::vector<double> passed;
    for (const PromptTally& prompt : prompts) {
      if (prompt.answers >= k) passed.push_back(EstimatePassAtK(prompt.answers, prompt.right, k));
    }
    if (!passed.empty()) figures->pass[k] = AverageOverPrompts(passed);
  }
}

}  // namespace syncopate::trainer
