#include "trainer/loss/loss_figures.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace syncopate::loss {
namespace {

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

// (mean w)^2 / mean(w^2): 1 where all weigh the same.
double EffectiveFraction(double sum, double squares, double count) { return Share(sum * sum, squares * count); }

double Correlation(absl::Span<const double> sums) {
  const double n = sums[kSumTokens];
  const double x = sums[kSumProximalP], y = sums[kSumBehaviourP];
  const double spread_x = n * sums[kSumProximalPSquare] - x * x, spread_y = n * sums[kSumBehaviourPSquare] - y * y;
  if (spread_x <= 0 || spread_y <= 0) return 0;
  return (n * sums[kSumPProduct] - x * y) / std::sqrt(spread_x * spread_y);
}

}  // namespace

LossFigures FinishFigures(absl::Span<const double> sums, absl::Span<const double> maxima, double updates) {
  SYNCOPATE_CHECK(sums.size() == kLossSums && maxima.size() == kLossMaxima);
  LossFigures figures;
  const double tokens = sums[kSumTokens], answers = sums[kSumAnswers];
  auto mean = [&](LossSum sum) { return Share(sums[sum], tokens); };
  if (tokens == 0) return figures;
  figures.loss = Share(sums[kSumLoss], updates);
  figures.entropy = mean(kSumEntropy);
  figures.top_probability = mean(kSumTopProbability);
  figures.clip_low_ratio = mean(kSumClippedLow);
  figures.clip_high_ratio = mean(kSumClippedHigh);
  figures.clip_ratio = figures.clip_low_ratio + figures.clip_high_ratio;
  figures.dual_clip_ratio = mean(kSumDualClipped);
  figures.ratio_kl = mean(kSumRatioKl);
  figures.ratio_max = maxima[kMaxRatio];
  figures.rejected_low_ratio = mean(kSumAlteredLow);
  figures.rejected_high_ratio = mean(kSumAlteredHigh);
  figures.rejected_ratio = figures.rejected_low_ratio + figures.rejected_high_ratio;
  figures.weight_mean = mean(kSumWeight);
  figures.weight_std = std::sqrt(std::max(0.0, mean(kSumWeightSquare) - figures.weight_mean * figures.weight_mean));
  figures.weight_min = -maxima[kMaxNegatedWeight];
  figures.weight_max = maxima[kMaxWeight];
  figures.effective_sample_ratio = EffectiveFraction(sums[kSumWeight], sums[kSumWeightSquare], tokens);
  figures.effective_answer_ratio = EffectiveFraction(sums[kSumAnswerRho], sums[kSumAnswerRhoSquare], answers);
  figures.mismatch_k1 = mean(kSumK1);
  figures.kl = mean(kSumK3);
  figures.mismatch_max = maxima[kMaxMismatch];
  figures.chi2_token = mean(kSumRhoSquare) - 1;
  figures.chi2_answer = Share(sums[kSumAnswerRhoSquare], answers) - 1;
  figures.perplexity_ratio = Share(sums[kSumProximalPerplexity], sums[kSumBehaviourPerplexity]);
  figures.log_perplexity_gap = Share(sums[kSumLogPerplexityGap], answers);
  figures.probability_correlation = Correlation(sums);
  figures.reference_kl = mean(kSumReferenceKl);
  for (int age = 0; age < kLossAges; ++age) {
    const double count = sums[GetPlace(age, kAgeTokens)];
    auto of_age = [&](LossAgeSum field) { return Share(sums[GetPlace(age, field)], count); };
    figures.ages[age] = {count, of_age(kAgeK1), of_age(kAgeK3), of_age(kAgeAltered)};
  }
  return figures;
}

}  // namespace syncopate::loss
