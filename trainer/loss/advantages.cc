#include "trainer/loss/advantages.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace syncopate::loss {
namespace {

constexpr double kWhitenEps = 1e-8;  // beside a variance, as in OpenRLHF and verl

double ComputeMean(const std::vector<double>& values) {
  double mean = 0;
  for (double value : values) mean += value / static_cast<double>(values.size());
  return mean;
}

// What the sample earned in all. Penalties by token count as they would in returns without a discount.
double TotalReward(const SampleOutcome& sample) {
  double reward = sample.reward;
  for (double penalty : sample.penalties) reward -= penalty;
  return reward;
}

// (r - mean) x scale. Zeros for a group without signal: a mean of equal numbers may differ from them by rounding.
std::vector<double> Centered(const std::vector<double>& rewards, double scale = 1) {
  std::vector<double> advantages(rewards.size(), 0.0);
  if (rewards.size() < 2 || HasZeroVariance(rewards)) return advantages;
  const double mean = ComputeMean(rewards);
  for (size_t i = 0; i < rewards.size(); ++i) advantages[i] = (rewards[i] - mean) * scale;
  return advantages;
}

// (r - mean) / mean. Rewards that do not say how much better than nothing an answer is (a mean of 0 or less) have no
// scale: zeros.
std::vector<double> MaxRlAdvantages(const std::vector<double>& rewards) {
  const double mean = ComputeMean(rewards);
  return Centered(rewards, mean > 0 ? 1 / mean : 0);
}

// r - mean of the others = (r - mean) G / (G - 1).
std::vector<double> RlooAdvantages(const std::vector<double>& rewards) {
  const double count = static_cast<double>(rewards.size());
  return Centered(rewards, count > 1 ? count / (count - 1) : 0);
}

// GDPO: each part of the reward is normalised by itself, so that a part with a large spread does not drown the others.
std::vector<double> GdpoSums(const std::vector<const SampleOutcome*>& group, const std::vector<double>& weights,
                             double eps) {
  std::vector<double> sums(group.size(), 0.0);
  for (size_t part = 0; part < weights.size(); ++part) {
    std::vector<double> values;
    for (const SampleOutcome* sample : group) values.push_back(sample->parts[part]);
    const std::vector<double> normalized = GrpoAdvantages(values, eps);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += weights[part] * normalized[i];
  }
  return sums;
}

// `times` over the same value.
void AddTo(BatchMoments& moments, double value, double times = 1) {
  moments += {times, value * times, value * value * times};
}

// To mean 0 and variance 1. A single value has no variance and stays what it is.
double Whiten(double value, const BatchMoments& moments) {
  if (moments.count < 2) return value;
  return (value - moments.mean()) / std::sqrt(moments.variance() + kWhitenEps);
}

}  // namespace

std::vector<double> GetRewards(const TrajectoryGroup& group) {
  std::vector<double> rewards;
  for (const Trajectory& sample : group.samples) {
    if (!sample.rejected) rewards.push_back(sample.reward);
  }
  return rewards;
}

bool HasZeroVariance(const std::vector<double>& rewards) {
  return std::all_of(rewards.begin(), rewards.end(), [&](double reward) { return reward == rewards.front(); });
}

std::vector<double> GrpoAdvantages(const std::vector<double>& rewards, double eps) {
  std::vector<double> advantages(rewards.size(), 0.0);
  if (rewards.size() < 2 || HasZeroVariance(rewards)) return advantages;
  const double mean = ComputeMean(rewards);
  double squares = 0;
  for (double reward : rewards) squares += (reward - mean) * (reward - mean);
  // Sample standard deviation (n - 1), as torch.std gives it to GRPO's implementations.
  const double deviation = std::sqrt(squares / static_cast<double>(rewards.size() - 1));
  for (size_t i = 0; i < rewards.size(); ++i) advantages[i] = (rewards[i] - mean) / (deviation + eps);
  return advantages;
}

bool SampleAdvantage::HasSignal() const {
  if (tokens.empty()) return value != 0;
  return std::any_of(tokens.begin(), tokens.end(), [](double advantage) { return advantage != 0; });
}

BatchMoments& BatchMoments::operator+=(const BatchMoments& other) {
  count += other.count;
  sum += other.sum;
  squares += other.squares;
  return *this;
}

double BatchMoments::variance() const {
  if (count < 2) return 0;
  return std::max(0.0, (squares - sum * sum / count) / (count - 1));
}

AdvantageBatch::AdvantageBatch(const AdvantageOptions& options, const std::vector<GroupOutcomes>& groups,
                               const std::vector<double>& weights)
    : options_(options) {
  for (const GroupOutcomes& group : groups) {
    if (options_.estimator == AdvantageEstimator::kReinforcePlusPlus) {
      AddReturns(group);
    } else {
      AddGroup(group, weights);
    }
  }
}

// Fewer than two samples that were not rejected have nothing to be compared with: every estimator gives them 0.
void AdvantageBatch::AddGroup(const GroupOutcomes& group, const std::vector<double>& weights) {
  std::vector<const SampleOutcome*> kept;
  std::vector<double> rewards;
  for (const SampleOutcome& sample : group) {
    if (sample.rejected) continue;
    kept.push_back(&sample);
    rewards.push_back(TotalReward(sample));
  }
  std::vector<double> values;
  switch (options_.estimator) {
    case AdvantageEstimator::kGrpo:
      values = GrpoAdvantages(rewards, options_.eps);
      break;
    case AdvantageEstimator::kRloo:
      values = RlooAdvantages(rewards);
      break;
    case AdvantageEstimator::kMaxRl:
      values = MaxRlAdvantages(rewards);
      break;
    case AdvantageEstimator::kGdpo:
      values = GdpoSums(kept, weights, options_.eps);
      break;
    default:
      values = Centered(rewards);
  }
  size_t i = 0;  // in `kept`
  for (const SampleOutcome& sample : group) {
    if (sample.rejected) {
      samples_.push_back({.rejected = true});
      continue;
    }
    const double tokens = static_cast<double>(sample.tokens);
    // Each estimator whitens over what it counts: tokens, samples, or the rewards themselves.
    if (options_.estimator == AdvantageEstimator::kReinforcePlusPlusBaseline) AddTo(moments_, values[i], tokens);
    if (options_.estimator == AdvantageEstimator::kGdpo) AddTo(moments_, values[i]);
    if (options_.estimator == AdvantageEstimator::kBatchStd) AddTo(moments_, rewards[i]);
    samples_.push_back({.value = values[i++], .tokens = {}});
  }
}

// Early rewards come with their tokens, the rest of the reward with the last one; sum_{k >= t} discount^(k - t) r_k over the trained tokens alone: those that the
// policy did not write neither earn nor discount.
void AdvantageBatch::AddReturns(const GroupOutcomes& group) {
  for (const SampleOutcome& sample : group) {
    SampleAdvantage& advantage = samples_.emplace_back();
    advantage.rejected = sample.rejected;
    if (sample.rejected) continue;
    advantage.tokens.resize(sample.tokens);
    double carried = sample.reward;
    for (const EarlyReward& early : sample.early) carried -= early.value;
    auto next = sample.early.rbegin();
    for (int64_t t = sample.tokens - 1; t >= 0; --t) {
      if (t < sample.tokens - 1) carried *= options_.discount;
      for (; next != sample.early.rend() && next->token >= t; ++next) carried += next->value;
      if (!sample.penalties.empty()) carried -= sample.penalties[t];
      advantage.tokens[t] = carried;
      AddTo(moments_, carried);
    }
  }
}

std::vector<SampleAdvantage> AdvantageBatch::Finish(const BatchMoments& moments) {
  switch (options_.estimator) {
    case AdvantageEstimator::kReinforcePlusPlus:
    case AdvantageEstimator::kReinforcePlusPlusBaseline:
    case AdvantageEstimator::kGdpo:
      for (SampleAdvantage& sample : samples_) {
        if (sample.rejected) continue;
        sample.value = Whiten(sample.value, moments);
        for (double& advantage : sample.tokens) advantage = Whiten(advantage, moments);
      }
      break;
    case AdvantageEstimator::kBatchStd:
      for (SampleAdvantage& sample : samples_) sample.value /= std::sqrt(moments.variance()) + options_.eps;
      break;
    default:
      break;
  }
  return std::move(samples_);
}

std::vector<SampleAdvantage> Advantages(const AdvantageOptions& options, const std::vector<GroupOutcomes>& groups,
                                        const std::vector<double>& weights) {
  AdvantageBatch batch(options, groups, weights);
  return batch.Finish(batch.moments());
}

}  // namespace syncopate::loss
