#pragma once

#include <array>

#include "absl/types/span.h"

// The figures by which people judge the loss of an update. No libtorch.
namespace syncopate::loss {

inline constexpr int kLossAges = 9;  // staleness 0 to 7 steps, and all above

// Sums over the tokens and answers of micro-batches, in one array of doubles that micro-batches and ranks add up.
enum LossSum {
  kSumLoss,  // shares of the update's loss
  kSumTokens,
  kSumAnswers,
  kSumClippedLow,
  kSumClippedHigh,
  kSumDualClipped,
  kSumAlteredLow,  // weights masked or clipped to a bound, rho < 1
  kSumAlteredHigh,
  kSumWeight,
  kSumWeightSquare,
  kSumK1,  // b - o
  kSumK3,  // rho - 1 - log rho
  kSumRho,
  kSumRhoSquare,
  kSumRatioKl,  // -log ratio of the surrogate
  kSumReferenceKl,
  kSumEntropy,
  kSumTopProbability,
  kSumProximalP,  // probabilities, for their correlation
  kSumProximalPSquare,
  kSumBehaviourP,
  kSumBehaviourPSquare,
  kSumPProduct,
  kSumAnswerRho,  // of answers from here: prod rho
  kSumAnswerRhoSquare,
  kSumProximalPerplexity,  // exp(-mean o)
  kSumBehaviourPerplexity,
  kSumLogPerplexityGap,  // |mean(o - b)|
  kSumOfAges,            // kLossAges times the fields of LossAgeSum
};
enum LossAgeSum { kAgeTokens, kAgeK1, kAgeK3, kAgeAltered, kLossAgeSums };
inline constexpr int kLossSums = kSumOfAges + kLossAges * kLossAgeSums;
constexpr int GetPlace(int age, LossAgeSum field) {
  return static_cast<int>(kSumOfAges) + age * kLossAgeSums + static_cast<int>(field);
}

// The largest of each, over the tokens.
enum LossMaximum { kMaxRatio, kMaxMismatch, kMaxWeight, kMaxNegatedWeight, kLossMaxima };

// The part of trainer::StepFigures that the loss knows.
struct LossFigures {
  double loss = 0;
  double entropy = 0;          // nats
  double top_probability = 0;  // of the current policy's most likely token
  // The surrogate's ratio: shares of tokens whose bound decided, mean of -log ratio, and the largest.
  double clip_ratio = 0, clip_low_ratio = 0, clip_high_ratio = 0, dual_clip_ratio = 0;
  double ratio_kl = 0;
  double ratio_max = 0;
  // Weights of the correction: shares masked or clipped to a bound, all and by the side of 1; (mean w)^2 / mean(w^2).
  double rejected_ratio = 0, rejected_low_ratio = 0, rejected_high_ratio = 0;
  double weight_mean = 0, weight_std = 0, weight_min = 0, weight_max = 0;
  double effective_sample_ratio = 0;
  double effective_answer_ratio = 0;  // the same of prod rho over answers, without any bound
  // Proximal against behaviour policy.
  double mismatch_k1 = 0, kl = 0;          // means; kl is k3
  double mismatch_max = 0;                 // |o - b|
  double chi2_token = 0, chi2_answer = 0;  // mean(rho^2) - 1
  double perplexity_ratio = 0;             // proximal / behaviour, of the means over answers
  double log_perplexity_gap = 0;           // mean |mean(o - b)|
  double probability_correlation = 0;      // Pearson's r of exp(o) and exp(b); 0 where either does not vary
  double reference_kl = 0;                 // k3 against the reference policy; 0 without one
  // Figures by the token's staleness: they separate the mismatch between engine and trainer (age 0) from the effect of
  // staleness.
  struct Age {
    double tokens = 0;                    // count of those that have a loss
    double k1 = 0, k3 = 0, rejected = 0;  // means over them; 0 without any
  };
  std::array<Age, kLossAges> ages = {};
};

// From the sums and maxima of a whole update, or of several: `updates` is by how many the loss is averaged. All 0
// without a token.
LossFigures FinishFigures(absl::Span<const double> sums, absl::Span<const double> maxima, double updates = 1);

}  // namespace syncopate::loss
