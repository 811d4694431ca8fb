#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/trajectory.h"
#include "trainer/loss/advantages.h"
#include "trainer/loss/loss_options.h"

// Converts submitted groups to the inputs of the advantage estimators. Pure; no libtorch.
namespace syncopate::loss {

// What is added to the reward of an answer of which the policy wrote `length` tokens; 0 or less. kDapo: 0 up to longest
// - cache, then falling linearly to -factor at the longest (arXiv 2503.14476, eq. 13).
double OverlongPenalty(int64_t length, const LossOptions& options);

// The answer has no loss: its environment rejected it, or it was cut off, and such answers are not trained on.
bool HasNoLoss(const Trajectory& sample, const LossOptions& options);
// The answer was cut off, and such answers are not trained on.
bool IsMasked(const Trajectory& sample, const LossOptions& options);

// The weights of the parts of kGdpo: those of the options, or 1 for each part of the first sample. Empty for others.
// INVALID_ARGUMENT (reason NO_REWARD_PARTS) if there is nothing to take them from.
absl::StatusOr<std::vector<RewardWeight>> PartWeights(const std::vector<const TrajectoryGroup*>& groups,
                                                      const AdvantageOptions& options);

// One for each group. `reference`: the reference policy's log-probs of each sample's written tokens, in the order of
// groups and samples, which the reward loses kl_coefficient (b - ref) for; empty: no such penalty. INVALID_ARGUMENT
// (reason NO_REWARD_PARTS), naming group, sample and part, if a sample lacks a part that counts.
absl::StatusOr<std::vector<GroupOutcomes>> GetOutcomes(const std::vector<const TrajectoryGroup*>& groups,
                                                       const LossOptions& options,
                                                       const std::vector<RewardWeight>& parts = {},
                                                       const std::vector<std::vector<float>>& reference = {});

// The part of trainer::StepFigures that says what a batch was like, before any advantage.
struct DataFigures {
  static constexpr int kAges = 9;  // ages 0 to 7, and all that are older
  int64_t trained_samples = 0;
  int64_t trained_tokens = 0;  // that have a loss: written ones within the age limit, of answers that are not masked
  double response_tokens_mean = 0;
  int64_t response_tokens_min = 0, response_tokens_max = 0;
  int64_t truncated_samples = 0;        // cut off at the longest answer
  int64_t masked_samples = 0;           // truncated ones that are not trained on
  int64_t rejected_samples = 0;         // by their environment: not trained on, and not compared with
  double turns_mean = 0;                // over the answers that an environment played; 0 without any
  double environment_seconds_mean = 0;  // that the environment of such an answer took in all
  int64_t masked_tokens = 0;            // of the others, beyond LossOptions::max_token_age
  double trained_token_ratio = 0;
  // Over answers: steps from the version of the first token to that of the last, and from there to the step that trains
  // it.
  double in_flight_staleness_mean = 0, in_queue_staleness_mean = 0;
  double mixed_version_ratio = 0;    // answers with tokens of more than one version
  double reward_by_age[kAges] = {};  // sums; the age is that of the sample's oldest token
  int64_t samples_by_age[kAges] = {};
  std::map<std::string, double> reward_parts =
      {};  // mean of each part, by its name, over the samples that have it and count
};
DataFigures DescribeData(const std::vector<const TrajectoryGroup*>& groups, const LossOptions& options, int64_t step);
// Given answers, which have lengths alone.
DataFigures DescribeSupervisedData(const std::vector<const TrajectoryGroup*>& groups);

// Steps between the version that made the token and `step`, the trainer's when it uses it; not less than 0.
int64_t GetAge(const PolicyVersion& version, int64_t step);
// The tokens that are older than options.max_token_age.
int64_t CountTokensBeyondAge(const Trajectory& sample, const LossOptions& options, int64_t step);
// Returns the staleness of each token that the policy wrote, in order.
std::vector<int64_t> GetAges(const Trajectory& sample, int64_t step);

}  // namespace syncopate::loss
