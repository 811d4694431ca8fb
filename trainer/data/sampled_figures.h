#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// Figures of several answers to each of some prompts, as papers report them.
namespace syncopate::trainer {

// A mean over prompts, with half the width of its interval of 95 %: 1.96 standard errors over the prompts. None with
// fewer than two prompts.
struct MeanOverPrompts {
  double mean = 0;
  std::optional<double> interval = std::nullopt;
  friend bool operator==(const MeanOverPrompts&, const MeanOverPrompts&) = default;
};
// `values`, one of each prompt; not empty.
MeanOverPrompts AverageOverPrompts(const std::vector<double>& values);

// The probability that one of `k` answers is right which are drawn without replacement from `answers` of which `right`
// are: 1 - C(answers - right, k) / C(answers, k), the unbiased estimate of pass@k (arXiv 2107.03374). 1 <= k <=
// answers.
double EstimatePassAtK(int64_t answers, int64_t right, int64_t k);

// What became of one prompt's answers.
struct PromptTally {
  int64_t answers = 0;  // that were judged
  int64_t right = 0;    // of them, with a reward of at least kRightReward
  double reward = 0;    // sum
  // Answers by what the reward found in their text; those in which it found nothing have no vote.
  struct Votes {
    int64_t all = 0, right = 0;
  };
  std::map<std::string, Votes> votes = {};
};
// Whether most of a prompt's votes are for a right answer: the share of right ones among all answers with the most
// votes, so that a tie does not depend on an order. 0 without votes.
double MajorityIsRight(const PromptTally& prompt);

inline constexpr float kRightReward = 1.0f;

struct SampledFigures {
  std::string name;
  int64_t asked = 0;    // answers, of all prompts
  int64_t missing = 0;  // of them, those that did not come in time, or whose reward failed
  int64_t prompts = 0;  // with an answer at least
  int32_t samples = 1;  // that are asked of each prompt
  std::optional<MeanOverPrompts> reward = std::nullopt;  // avg@k: of each prompt's mean reward
  // By k: 1, 2, 4, ... and `samples`; over the prompts with at least k answers. Left out where there are none.
  std::map<int64_t, MeanOverPrompts> pass = {};
  // maj@k of all of a prompt's answers, over the prompts with an answer; none if the reward finds no answer in any
  // text.
  std::optional<MeanOverPrompts> majority = std::nullopt;
  double response_tokens_mean = 0;
  double truncated_ratio = 0;  // of the answers that came, those cut off at the longest
};

// Fills in reward, pass and majority from the tallies of all prompts that were asked, `figures->samples` answers each.
void AddSampledMeans(const std::vector<PromptTally>& prompts, SampledFigures* figures);

}  // namespace syncopate::trainer
