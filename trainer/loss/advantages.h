#pragma once

#include <cstdint>
#include <vector>

#include "base/trajectory.h"
#include "trainer/loss/loss_options.h"

// From rewards to advantages. Pure arithmetic on the host, without libtorch.
namespace syncopate::loss {

// Returns the rewards of the group's samples that were not rejected, in their order.
std::vector<double> GetRewards(const TrajectoryGroup& group);

// All rewards of the group are equal (also for a group of one or none): it has no gradient.
bool HasZeroVariance(const std::vector<double>& rewards);

// Group-relative advantages of one group's rewards: (r - mean) / (std + eps), std unbiased (GRPO, arXiv 2402.03300,
// with verl's eps). A group of one, or one whose rewards are all equal, carries no signal: zeros.
std::vector<double> GrpoAdvantages(const std::vector<double>& rewards, double eps = 1e-6);

// A reward that a sample has earned before its end.
struct EarlyReward {
  int64_t token = 0;  // of the trained ones, the one that earned it
  double value = 0;
  friend bool operator==(const EarlyReward&, const EarlyReward&) = default;
};

// One sample as the estimators see it.
struct SampleOutcome {
  double reward = 0;               // after penalties of length
  std::vector<double> parts = {};  // kGdpo: the parts that count, in the order of their weights
  int64_t tokens = 0;              // that are trained on; 0: it only is compared with
  std::vector<double> penalties =
      {};  // taken off the reward of each trained token (KL); empty: none, else `tokens` long
  // Parts of `reward` that kReinforcePlusPlus places where they were earned, tokens ascending; the rest comes with the
  // last token.
  std::vector<EarlyReward> early = {};
  bool rejected = false;  // it gets no advantage, and the others are not compared with it
};
using GroupOutcomes = std::vector<SampleOutcome>;

// The advantage of a sample's trained tokens.
struct SampleAdvantage {
  double value = 0;                 // of every token
  std::vector<double> tokens = {};  // or one of each, where they differ
  bool rejected = false;            // 0, whatever others have
  double at(int64_t token) const { return tokens.empty() ? value : tokens[token]; }
  bool HasSignal() const;
};

// What the estimators that look at the whole batch need of it. Ranks add theirs up.
struct BatchMoments {
  double count = 0, sum = 0, squares = 0;
  BatchMoments& operator+=(const BatchMoments& other);
  double mean() const { return count > 0 ? sum / count : 0; }
  double variance() const;  // unbiased; 0 of fewer than two values
};

// The advantages of a batch in two steps, so that ranks can add up what they know in between; a rank that has the
// whole batch calls Advantages(). The result does not depend on how groups are dealt to ranks.
class AdvantageBatch {
 public:
  // First half: everything that a group tells by itself. `weights` are those of the parts, for kGdpo: one each.
  AdvantageBatch(const AdvantageOptions& options, const std::vector<GroupOutcomes>& groups,
                 const std::vector<double>& weights = {});

  // Moments of this rank's groups. All 0 for estimators without batch statistics:
  // AdvantageOptions::needs_batch_moments().
  const BatchMoments& moments() const { return moments_; }
  // Second half: `moments` of all ranks. Samples in the order of groups and of samples within; moves them out.
  std::vector<SampleAdvantage> Finish(const BatchMoments& moments);

 private:
  void AddGroup(const GroupOutcomes& group, const std::vector<double>& weights);
  void AddReturns(const GroupOutcomes& group);

  const AdvantageOptions options_;
  BatchMoments moments_;
  std::vector<SampleAdvantage> samples_;
};

std::vector<SampleAdvantage> Advantages(const AdvantageOptions& options, const std::vector<GroupOutcomes>& groups,
                                        const std::vector<double>& weights = {});

}  // namespace syncopate::loss
