#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/trainer/loss/fixture_a.h"
#include "trainer/loss/aggregation.h"
#include "trainer/loss/correction.h"
#include "trainer/loss/divergence.h"
#include "trainer/loss/surrogate.h"

// The figures with which other projects test their losses, with their inputs. They are rounded to four decimals.
namespace syncopate::loss {
namespace {

using ::testing::ElementsAre;
using testing::Integers;
using testing::Near;
using testing::OneAnswer;
using testing::Tensor;
using testing::Values;

constexpr double kFourDecimals = 6e-5;

LossOptions Plain(Surrogate surrogate = Surrogate::kPpo) {
  LossOptions options;
  options.surrogate = surrogate;
  options.clip_low = options.clip_high = 0.2;
  options.correction = Correction::kNone;
  options.proximal = Proximal::kRecompute;
  options.aggregation = Aggregation::kTokenMean;
  return options;
}

std::vector<double> ComputeTokenLosses(const TokenBatch& batch, const LossOptions& options) {
  return Values(SurrogateLosses(CompareTokens(batch, options), batch, options).loss);
}

std::vector<double> MakeWeights(const TokenBatch& batch, const LossOptions& options) {
  return Values(CorrectTokens(CompareTokens(batch, options), batch, options).weight);
}

double MeanLoss(const TokenBatch& batch, const LossOptions& options) {
  return LossShare(batch, {.tokens = 3, .answers = 1, .groups = 1}, options).item<double>();
}

// NeMo RL: ratios .5, 1, 1.5 and importance weights .6065, 1.6487, .8187.
TokenBatch NemoBatch() { return OneAnswer({-1.69315, -1, -.59453}, {-1, -1, -1}, {-.5, -1.5, -.8}, {1, -1, 2}); }

TEST(NemoNumbersTest, Ppo) {
  EXPECT_THAT(ComputeTokenLosses(NemoBatch(), Plain()), Near(kFourDecimals, {-.5, 1, -2.4}));
  EXPECT_NEAR(MeanLoss(NemoBatch(), Plain()), -.6333, kFourDecimals);
}

TEST(NemoNumbersTest, ReinforceAndCispo) {
  TokenBatch batch = NemoBatch();
  EXPECT_NEAR(MeanLoss(batch, Plain(Surrogate::kCispo)), -(.8 * -1.69315 + 1 * 1 * 1 + 1.2 * 2 * -.59453) / 3,
              1e-5);  // mean(-A [.8, 1, 1.2] n)
  batch.current = Tensor({-.5, -1, -1.5});
  EXPECT_NEAR(MeanLoss(batch, Plain(Surrogate::kReinforce)), .8333, kFourDecimals);
}

TEST(NemoNumbersTest, ImportanceWeights) {
  LossOptions options = Plain();
  options.correction = Correction::kTis;
  options.tis_cap = 1e9;
  EXPECT_THAT(MakeWeights(NemoBatch(), options), Near(kFourDecimals, {.6065, 1.6487, .8187}));
  EXPECT_NEAR(MeanLoss(NemoBatch(), options), -.2065, kFourDecimals);
  options.tis_cap = .8;  // so low a cap is refused in a run; the formula has no such limit
  EXPECT_NEAR(MeanLoss(NemoBatch(), options), -.4744, kFourDecimals);
}

TEST(NemoNumbersTest, TruncatedImportanceSamplingWithAMinimum) {  // weights .1, 1, 10 to [.1, 2] and to [.5, 2]
  const TokenBatch batch = OneAnswer({-1, -1, -1}, {-1, -1, -1}, {-1 - std::log(.1), -1, -1 - std::log(10)}, {1, 1, 1});
  LossOptions options = Plain();
  options.correction = Correction::kTis;
  options.tis_floor = .1;
  EXPECT_THAT(MakeWeights(batch, options), Near(1e-12, {.1, 1, 2}));
  options.tis_floor = .5;
  EXPECT_THAT(MakeWeights(batch, options), Near(1e-12, {.5, 1, 2}));
}

TEST(NemoNumbersTest, GspoAndItsSequenceWeight) {
  LossOptions options = Plain(Surrogate::kGspo);
  const TokenBatch batch = NemoBatch();
  EXPECT_NEAR(Values(SurrogateLosses(CompareTokens(batch, options), batch, options).ratio)[0], .9086, kFourDecimals);
  EXPECT_NEAR(MeanLoss(batch, options), -.6057, kFourDecimals);
  options.correction = Correction::kSeqTis;
  options.seq_tis_cap = .8;  // of exp(-.5 + .5 - .2) = .8187
  EXPECT_NEAR(MeanLoss(batch, options), -.4846, kFourDecimals);
}

TEST(NemoNumbersTest, IcePopBandOfPointFiveToFive) {
  LossOptions options = Plain();
  options.correction = Correction::kMis;
  options.mis_high = 5;
  const TokenBatch batch = OneAnswer({-1, -1, -1}, {-1, -1, -1}, {-.5, -3.5, -.8}, {1, 1, 1});
  EXPECT_THAT(MakeWeights(batch, options), Near(kFourDecimals, {.6065, 0, .8187}));
}

TEST(NemoNumbersTest, DualClip) {
  LossOptions options = Plain();
  options.dual_clip = 3;
  const TokenBatch batch = OneAnswer({-1.69315, -1, -.69741}, {-1, -1, -3}, {-1, -1, -3}, {1, -1, -4});
  EXPECT_THAT(ComputeTokenLosses(batch, options), Near(kFourDecimals, {-.5, 1, 12}));
  EXPECT_NEAR(MeanLoss(batch, options), 4.1667, kFourDecimals);
}

TEST(NemoNumbersTest, ReferenceKl) {
  const at::Tensor n = Tensor({-1, -1, -1}), ref = Tensor({0, -15, -30});
  const std::pair<KlEstimator, std::vector<double>> raw[] = {
      {KlEstimator::kK1, {-1, 14, 29}}, {KlEstimator::kK2, {.5, 98, 420.5}}, {KlEstimator::kK3, {.7183, 13, 28}}};
  for (const auto& [estimator, expected] : raw) {
    EXPECT_THAT(Values(ReferenceKl(n, ref, estimator, {}, /*input_bound=*/0, /*bound=*/0)),
                Near(kFourDecimals, expected));
    EXPECT_THAT(Values(ReferenceKl(n, ref, estimator)), Near(kFourDecimals, {expected[0], 10.0, 10.0}));
  }
  const TokenBatch batch = NemoBatch();
  const at::Tensor log_v = batch.current - batch.behaviour;
  EXPECT_THAT(Values(at::exp(log_v)), Near(kFourDecimals, {.3033, 1.6487, 1.2281}));
  EXPECT_THAT(Values(ReferenceKl(batch.current, Tensor({-1, -1, -1}), KlEstimator::kK3)),
              Near(kFourDecimals, {.3069, 0, .0721}));
}

TEST(NemoNumbersTest, AClampedK3HasNoGradientEvenThroughItsWeight) {  // x -3, clamped to -2, and -1
  const at::Tensor n = Tensor({-3, -1}).set_requires_grad(true);
  const at::Tensor kl = ReferenceKl(n, Tensor({0, 0}), KlEstimator::kK3, n - n.detach(), /*input_bound=*/2, 0);
  EXPECT_THAT(Values(kl), Near(1e-6, {4.389056, .7182818}));
  kl.sum().backward();
  EXPECT_THAT(Values(n.grad()), Near(1e-12, {0, -1}));  // exp(0) (k3 + 1 - e) = -1, which is x
}

TEST(NemoNumbersTest, ABehaviourLogProbOfMinusInfinityStaysFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (Correction correction : {Correction::kMis, Correction::kTis, Correction::kSeqTis, Correction::kGeometric}) {
    LossOptions options = Plain();
    options.correction = correction;
    const TokenBatch batch = OneAnswer({-1, -1, -1}, {-1, -1, -1}, {-infinity, -1, -1}, {1, -1, 2});
    EXPECT_TRUE(std::isfinite(MeanLoss(batch, options))) << GetName(correction);
  }
}

// SkyRL: log rho .5, -.5, 1.
TokenBatch SkyBatch() { return OneAnswer({-1, -1.5, -.5}, {-1, -1.5, -.5}, {-1.5, -1, -1.5}, {1, 1, 1}); }

TEST(SkyRlNumbersTest, TokenAndSequenceWeights) {
  LossOptions options = Plain();
  options.correction = Correction::kTis;
  EXPECT_THAT(MakeWeights(SkyBatch(), options), Near(kFourDecimals, {1.6487, .6065, 2.0}));
  options.correction = Correction::kSeqTis;
  EXPECT_THAT(MakeWeights(SkyBatch(), options), Near(kFourDecimals, {2.7183, 2.7183, 2.7183}));
  const TokenBatch masked = OneAnswer({-1, -.5}, {-1, -.5}, {-1.5, -1.5}, {1, 1});   // without the second token
  EXPECT_THAT(MakeWeights(masked, options), Near(kFourDecimals, {4.4817, 4.4817}));  // e^1.5
  const TokenBatch far = OneAnswer({-1, -1}, {-1, -1}, {-3, -3}, {1, 1});            // e^4, over the cap of 5
  EXPECT_THAT(MakeWeights(far, options), ElementsAre(5, 5));
}

TEST(SkyRlNumbersTest, BandsAreInclusive) {
  LossOptions options = Plain();
  const TokenBatch batch = OneAnswer({0, 0}, {0, 0}, {-.5, .5}, {1, 1});
  options.correction = Correction::kMis;
  options.mis_low = std::exp(-.5);
  options.mis_high = std::exp(.5);
  EXPECT_THAT(MakeWeights(batch, options), ElementsAre(options.mis_high, options.mis_low));
  options.mis_high = std::nextafter(options.mis_high, 1);
  EXPECT_THAT(MakeWeights(batch, options), ElementsAre(0, options.mis_low));
}

TEST(SkyRlNumbersTest, CispoAndDualClipAsSums) {  // ratios .5, 1, 10
  const TokenBatch batch = OneAnswer({-1.69315, -1, -.69741}, {-1, -1, -3}, {-1, -1, -3}, {1, -1, -4});
  LossOptions options = Plain(Surrogate::kCispo);
  options.aggregation = Aggregation::kTokenSum;
  EXPECT_NEAR(MeanLoss(batch, options), -2.9930, kFourDecimals);
  options.surrogate = Surrogate::kPpo;
  options.dual_clip = 3;
  EXPECT_NEAR(MeanLoss(batch, options), 12.5, kFourDecimals);
}

TEST(SlimeNumbersTest, DualClip) {  // ratios 2, 2, .5; A 2, -2, 2; c 1.5
  LossOptions options = Plain();
  options.dual_clip = 1.5;
  const double log2 = std::log(2.0);
  const TokenBatch batch = OneAnswer({log2, log2, -log2}, {0, 0, 0}, {0, 0, 0}, {2, -2, 2});
  EXPECT_THAT(ComputeTokenLosses(batch, options), Near(1e-12, {-2.4, 3, -1}));
}

TEST(SlimeNumbersTest, CispoAndItsGradient) {  // ratios 1, 1.14, 1.56, .4 to 1, 1.14, 1.28, .8
  LossOptions options = Plain(Surrogate::kCispo);
  options.clip_high = .28;
  options.aggregation = Aggregation::kTokenSum;
  const std::vector<double> n = {-.7, -1.2, -.4, -2.1}, ratios = {1, 1.14, 1.56, .4}, a = {1, -.5, 2, -1};
  std::vector<double> o;
  for (size_t i = 0; i < n.size(); ++i) o.push_back(n[i] - std::log(ratios[i]));
  const LossGradients made = DifferentiateLoss(OneAnswer(n, o, o, a), {.tokens = 4, .answers = 1}, options);
  EXPECT_THAT(Values(made.dlogprob), Near(1e-12, {-1, 1.14 * .5, -1.28 * 2, .8}));
}

TEST(VerlNumbersTest, TokenSumOfFourRanksWhoseGradientsAreAveraged) {
  // [[1, 2, 30], [4, 50, 6]] under the mask [[1, 1, 0], [1, 0, 1]].
  TokenBatch batch;
  batch.answer = Integers({0, 0, 1, 1});
  batch.answer_tokens = Integers({2, 2});
  const at::Tensor share = Aggregate(Tensor({1, 2, 4, 6}), batch, {}, Aggregation::kTokenSum, 0);
  // Our figures are sums over ranks, so the caller applies the factor of averaging.
  EXPECT_EQ(4 * share.item<double>(), 52);
}

TEST(VerlNumbersTest, MaskModeKeepsAndRejects) {  // o -2, b -1: .3679 is rejected; b -2.5: 1.6487 is kept
  LossOptions options = Plain();
  options.correction = Correction::kMis;
  const TokenBatch batch = OneAnswer({-2, -2}, {-2, -2}, {-1, -2.5}, {1, 1});
  EXPECT_THAT(MakeWeights(batch, options), Near(kFourDecimals, {0, 1.6487}));
}

TEST(VerlNumbersTest, K1RejectionIsOfTheInverseRatio) {  // log rho = -1: k1 = 1
  LossOptions options = Plain();
  options.rejection = Rejection::kK1;
  options.rejection_low = -.5;
  options.rejection_high = 1;
  EXPECT_THAT(MakeWeights(OneAnswer({-2, -2}, {-2, -2}, {-1, -3}, {1, 1}), options), ElementsAre(1, 0));
}

TEST(ArealNumbersTest, A3poInterpolates) {
  // alpha 1/2 between b and n half a nat up: halfway. Linear: log of the mean of .25 and .5.
  const at::Tensor log_v = Tensor({.5, .5, .5}), age = Integers({1, 1, 1});
  EXPECT_THAT(Values(Tensor({-1.5, -2.5, -3.5}) + InterpolatedLogRho(log_v, age, false)),
              ElementsAre(-1.25, -2.25, -3.25));
  // alpha 3/4 and 4/5.
  EXPECT_THAT(Values(Tensor({-1.75, -2.5}) + InterpolatedLogRho(Tensor({.5, .5}), Integers({3, 4}), false)),
              Near(1e-12, {-1.375, -2.1}));
  const at::Tensor linear = Tensor({std::log(.25)}) + InterpolatedLogRho(Tensor({std::log(2.0)}), Integers({1}), true);
  EXPECT_THAT(Values(linear), Near(1e-12, {std::log(.375)}));
}

TEST(TrlNumbersTest, OpsmKeepsNearAnswersAndPositiveOnes) {  // mask 1, 1, 0
  LossOptions options = Plain();
  options.opsm_delta = .5;
  TokenBatch batch = OneAnswer({-1, -3, -3}, {-1, -1, -1}, {-1, -1, -1}, {-1, 1, -1});
  batch.answer = Integers({0, 1, 2});
  batch.answer_tokens = Integers({1, 1, 1});
  EXPECT_THAT(MakeWeights(batch, options), ElementsAre(1, 1, 0));
}

}  // namespace
}  // namespace syncopate::loss
