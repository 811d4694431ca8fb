#include "trainer/loss/loss_figures.h"

#include <gtest/gtest.h>

#include <vector>

namespace syncopate::loss {
namespace {

TEST(LossFiguresTest, AreMeansOverTokensAndAnswers) {
  std::vector<double> sums(kLossSums, 0.0), maxima = {1.5, .7, 2, -.1};
  sums[kSumTokens] = 10;
  sums[kSumAnswers] = 2;
  sums[kSumLoss] = 3;
  sums[kSumClippedLow] = 1;
  sums[kSumClippedHigh] = 2;
  sums[kSumAlteredHigh] = 4;
  sums[kSumWeight] = 8;
  sums[kSumWeightSquare] = 10;
  sums[kSumRhoSquare] = 15;
  sums[kSumAnswerRho] = 2;
  sums[kSumAnswerRhoSquare] = 4;
  sums[GetPlace(1, kAgeTokens)] = 5;
  sums[GetPlace(1, kAgeK3)] = 1;
  const LossFigures figures = FinishFigures(sums, maxima, /*updates=*/2);
  EXPECT_DOUBLE_EQ(figures.loss, 1.5);
  EXPECT_DOUBLE_EQ(figures.clip_ratio, .3);
  EXPECT_DOUBLE_EQ(figures.rejected_ratio, .4);
  EXPECT_DOUBLE_EQ(figures.weight_mean, .8);
  EXPECT_DOUBLE_EQ(figures.weight_std, .6);
  EXPECT_DOUBLE_EQ(figures.effective_sample_ratio, .64);
  EXPECT_DOUBLE_EQ(figures.effective_answer_ratio, .5);
  EXPECT_DOUBLE_EQ(figures.chi2_token, .5);
  EXPECT_DOUBLE_EQ(figures.chi2_answer, 1);
  EXPECT_DOUBLE_EQ(figures.ratio_max, 1.5);
  EXPECT_DOUBLE_EQ(figures.weight_min, .1);
  EXPECT_DOUBLE_EQ(figures.ages[1].k3, .2);
  EXPECT_DOUBLE_EQ(figures.ages[0].k3, 0);  // no token of that age
}

TEST(LossFiguresTest, ConstantProbabilitiesHaveNoCorrelation) {
  std::vector<double> sums(kLossSums, 0.0), maxima(kLossMaxima, 0.0);
  sums[kSumTokens] = 4;
  sums[kSumProximalP] = sums[kSumBehaviourP] = 2;
  sums[kSumProximalPSquare] = sums[kSumBehaviourPSquare] = sums[kSumPProduct] = 1;
  EXPECT_EQ(FinishFigures(sums, maxima).probability_correlation, 0);
}

}  // namespace
}  // namespace syncopate::loss
