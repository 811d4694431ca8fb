#include "tests/unit/trainer/loss/fixture_a.h"

#include <gtest/gtest.h>

#include "trainer/loss/aggregation.h"
#include "trainer/loss/answer_sums.h"
#include "trainer/loss/divergence.h"
#include "trainer/loss/surrogate.h"

namespace syncopate::loss {
namespace {

using testing::FixtureA;
using testing::Near;
using testing::Tensor;
using testing::Values;

constexpr double kTight = 1.1e-9;  // the figures have nine decimals

LossOptions Surrogated(Surrogate surrogate, double low = 0.2, double high = 0.2) {
  LossOptions options;
  options.surrogate = surrogate;
  options.clip_low = low;
  options.clip_high = high;
  options.correction = Correction::kNone;
  options.proximal = Proximal::kRecompute;
  options.aggregation = Aggregation::kTokenMean;
  return options;
}

LossOptions Corrected(Correction correction) {
  LossOptions options = Surrogated(Surrogate::kPpo);
  options.correction = correction;
  return options;
}

// Expects the loss and the gradient in float64, and the loss in float32 too.
void ExpectLoss(const LossOptions& options, double loss, const std::vector<double>& gradient) {
  FixtureA fixture;
  EXPECT_NEAR(fixture.Loss(options), loss, kTight);
  EXPECT_THAT(fixture.gradient, Near(kTight, gradient));
  FixtureA single(at::kFloat);
  EXPECT_NEAR(single.Loss(options), loss, 1e-5);
  EXPECT_THAT(single.gradient, Near(1e-5, gradient));
}

// The surrogate is max(-A u, -A clip(u, .8, 1 + high)) with u = exp(n - o): 1.2 and 1.28 clip the same tokens, so the
// gradients agree.
const std::vector<double> kPpoGradient = {
    0.0,         -0.040295142, -0.057181528, -0.054392752, 0.063195362,  0.049216598, 0.081144451,  0.0,
    0.054392675, 0.069841578,  0.0,          0.0,          -0.044532956, 0.0,         -0.060113203, -0.057181448};

TEST(FixtureATest, PpoAndClipHigherAndADualClipThatNeverActs) {
  ExpectLoss(Surrogated(Surrogate::kPpo), -0.126448879, kPpoGradient);
  ExpectLoss(Surrogated(Surrogate::kPpo, 0.2, 0.28), -0.135151713, kPpoGradient);
  LossOptions dual = Surrogated(Surrogate::kPpo);
  dual.dual_clip = 3;
  ExpectLoss(dual, -0.126448879, kPpoGradient);
}

TEST(FixtureATest, PpoAnchoredOnTheBehaviourPolicy) {  // u is exp(n - b)
  LossOptions options = Surrogated(Surrogate::kPpo);
  options.proximal = Proximal::kBypass;
  const std::vector<double> gradient = {0.0,         -0.032990872, 0.0,          -0.054392752, 0.060113288, 0.066435458,
                                        0.044533019, 0.0,          0.05549148,   0.070543497,  0.0,         0.0,
                                        0.0,         0.0,          -0.060113203, -0.023248242};
  ExpectLoss(options, -0.134713353, gradient);
  options.proximal = Proximal::kAuto;  // kAuto has always meant this for correction none
  ExpectLoss(options, -0.134713353, gradient);
}

// The loss is w max(-A u, -A clip(u)), where w is rho = exp(o - b).
TEST(FixtureATest, DecoupledPpoUncapped) {
  LossOptions options = Corrected(Correction::kTis);
  options.tis_cap = 1e9;
  ExpectLoss(options, -0.246955129,
             {0.0, -0.032990872, -0.094276402, -0.054392752, 0.060113288, 0.066435458, 0.044533019, 0.0, 0.05549148,
              0.070543497, 0.0, 0.0, -0.147854621, 0.0, -0.060113203, -0.023248242});
}

TEST(FixtureATest, DecoupledPpoWithTokenTis) {  // w = min(rho, 2)
  ExpectLoss(Corrected(Correction::kTis), -0.18816642,
             {0.0, -0.032990872, -0.094276402, -0.054392752, 0.060113288, 0.066435458, 0.044533019, 0.0, 0.05549148,
              0.070543497, 0.0, 0.0, -0.089065912, 0.0, -0.060113203, -0.023248242});
  FixtureA fixture;
  fixture.Loss(Corrected(Correction::kTis));
  EXPECT_NEAR(fixture.figures.rejected_high_ratio, 1.0 / 13, 1e-12);  // e^1.2 is above the cap
}

TEST(FixtureATest, DecoupledPpoWithTheIcePopBand) {  // w = rho in [.5, 2], else 0
  ExpectLoss(Corrected(Correction::kMis), -0.075852266,
             {0.0, -0.032990872, -0.094276402, -0.054392752, 0.060113288, 0.066435458, 0.044533019, 0.0, 0.05549148,
              0.070543497, 0.0, 0.0, 0.0, 0.0, -0.060113203, 0.0});
  FixtureA fixture;
  fixture.Loss(Corrected(Correction::kMis));
  EXPECT_NEAR(fixture.figures.rejected_high_ratio, 1.0 / 13, 1e-12);  // e^1.2
  EXPECT_NEAR(fixture.figures.rejected_low_ratio, 1.0 / 13, 1e-12);   // e^-.9
}

TEST(FixtureATest, SequenceTis) {  // w = min(exp(sum(o - b)), 2): 1.491824698, 0.70468809, 1.030454534, 1.221402758
  LossOptions options = Corrected(Correction::kSeqTis);
  options.seq_tis_cap = 2;
  ExpectLoss(options, -0.336900372,
             {0.0, -0.060113288, -0.085304816, -0.081144451, 0.044533019, 0.03468235, 0.057181528, 0.0, 0.056049179,
              0.07196857, 0.0, 0.0, -0.054392675, 0.0, -0.073422432, -0.069841578});
}

TEST(FixtureATest, ProductsAndGeometricMeansOfAnswers) {
  FixtureA fixture;
  const TokenRatios ratios = CompareTokens(fixture.batch, Corrected(Correction::kMis));
  EXPECT_THAT(Values(at::exp(AnswerSums(ratios.log_rho, fixture.batch))),
              Near(kTight, {1.491824698, 0.70468809, 1.030454534, 1.221402758}));
  EXPECT_THAT(Values(at::exp(AnswerMeans(ratios.log_rho, fixture.batch))),
              Near(kTight, {1.105170918, 0.889881771, 1.015113065, 1.051271096}));
}

TEST(FixtureATest, GeometricMaskTimesTokenTis) {  // exp(mean(o - b)) in [.95, 1.06], and min(rho, 2)
  LossOptions options = Corrected(Correction::kSeqMaskTis);
  options.geometric_low = 0.95;
  options.geometric_high = 1.06;
  ExpectLoss(options, -0.105452213,
             {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.05549148, 0.070543497, 0.0, 0.0, -0.089065912, 0.0,
              -0.060113203, -0.023248242});
}

TEST(FixtureATest, Gspo) {  // sg(s) exp(n - sg(n)), s = exp(mean(n - o))
  LossOptions options = Surrogated(Surrogate::kGspo, 3e-4, 4e-4);
  options.aggregation = Aggregation::kAuto;  // mean over answers of token means
  ExpectLoss(options, 0.052004538,
             {0.0, 0.0, 0.0, 0.0, 0.068461642, 0.068461642, 0.068461642, 0.0, 0.100156836, 0.100156836, 0.0, 0.0, 0.0,
              0.0, 0.0, 0.0});
  options.clip_low = options.clip_high = 0.2;
  // The loss and the figures equal those of the ratio of whole answers, and the gradient goes through the mean.
  ExpectLoss(options, 0.036154321,
             {-0.044750005, -0.044750005, -0.044750005, -0.044750005, 0.068461642, 0.068461642, 0.068461642, 0.0,
              0.100156836, 0.100156836, 0.0, 0.0, -0.047636065, -0.047636065, -0.047636065, -0.047636065});
  FixtureA fixture;
  const TokenRatios ratios = CompareTokens(fixture.batch, options);
  const std::vector<double> s = Values(SurrogateLosses(ratios, fixture.batch, options).ratio);
  EXPECT_THAT((std::vector<double>{s[0], s[4], s[7], s[9]}),
              Near(kTight, {1.012578452, 1.161834243, 1.133148453, 1.077884151}));
}

TEST(FixtureATest, Cispo) {  // -sg(clip(u)) A n
  ExpectLoss(Surrogated(Surrogate::kCispo, 1, 4), 0.109624904,
             {-0.073422536, -0.040295142, -0.057181528, -0.054392752, 0.063195362, 0.049216598, 0.081144451, 0.0,
              0.054392675, 0.069841578, 0.0, 0.0, -0.044532956, -0.077186881, -0.060113203, -0.057181448});
  ExpectLoss(Surrogated(Surrogate::kCispo, 0.2, 0.28), 0.11910829,
             {-0.069622723, -0.043514202, -0.057181528, -0.054392752, 0.063195362, 0.049216598, 0.069622723, 0.0,
              0.054392675, 0.069622625, 0.0, 0.0, -0.044532956, -0.069622625, -0.060113203, -0.057181448});
}

TEST(FixtureATest, Reinforce) {  // -A n
  ExpectLoss(Surrogated(Surrogate::kReinforce), 0.110417243,
             {-0.054392752, -0.054392752, -0.054392752, -0.054392752, 0.054392752, 0.054392752, 0.054392752, 0.0,
              0.054392675, 0.054392675, 0.0, 0.0, -0.054392675, -0.054392675, -0.054392675, -0.054392675});
}

TEST(FixtureATest, Sapo) {  // -(4 / tau) sigmoid(tau (u - 1)) A, tau 1 and 1.05
  ExpectLoss(Surrogated(Surrogate::kSapo), -0.335883797,
             {-0.071220836, -0.039625938, -0.057143966, -0.054392752, 0.06274136, 0.049093955, 0.075966124, 0.0,
              0.054392675, 0.068311397, 0.0, 0.0, -0.044169128, -0.073894814, -0.059947282, -0.057143885});
}

TEST(FixtureATest, DppoWithTheKlOfKimi) {  // -A v where the probability has not moved by .2, + 1e-3 (n - b)^2
  LossOptions options = Surrogated(Surrogate::kDppo);
  options.proximal = Proximal::kAuto;
  options.kl_tau = 1e-3;
  ExpectLoss(options, -0.118685719,
             {-0.081082913, -0.033067795, -0.094191787, -0.054392752, 0.060128673, 0.066466227, 0.04450225, 0.0,
              0.055494557, 0.070583497, 0.0, 0.0, 0.000153846, -0.069803116, -0.060097818, -0.023379011});
}

TEST(FixtureATest, AipoIsReinforceWithTheCappedRatioToTheBehaviourPolicy) {  // -sg(min(v, 2)) A n
  FixtureA fixture;
  LossOptions options = Surrogated(Surrogate::kAipo);
  options.proximal = Proximal::kAuto;
  double loss = 0;
  std::vector<double> gradient(16, 0.0);
  for (size_t i = 0; i < 16; ++i) {
    if (testing::kMask[i] == 0) continue;
    const double log_v = testing::kOldMinusBehaviour[i] + testing::kNewMinusOld[i];
    const double weight = std::min(std::exp(log_v), 2.0) * testing::kGrpo[i / 4] / 13;
    loss -= weight * (testing::kBehaviour[i] + log_v);
    gradient[i] = -weight;
  }
  EXPECT_NEAR(fixture.Loss(options), loss, 1e-12);
  EXPECT_THAT(fixture.gradient, Near(1e-12, gradient));
}

TEST(FixtureATest, OpsmMasksFarAnswersWithANegativeAdvantage) {  // mean(o - n): -.0125, -.15, -.125, -.075
  FixtureA fixture;
  LossOptions options = Surrogated(Surrogate::kPpo);
  EXPECT_THAT(Values(AnswerMeans(fixture.batch.proximal - fixture.batch.current, fixture.batch)),
              Near(kTight, {-0.0125, -0.15, -0.125, -0.075}));
  // All current log-probs are lower by .2: the means are .1875, .05, .075, .125, of which the third has A < 0 too.
  fixture.batch.current = (fixture.batch.current.detach() - 0.2).set_requires_grad(true);
  options.opsm_delta = 0.06;
  fixture.Loss(options);
  EXPECT_NE(fixture.gradient[1], 0);  // far, but A > 0
  EXPECT_NE(fixture.gradient[4], 0);  // A < 0, but near
  EXPECT_EQ(fixture.gradient[8], 0);
  EXPECT_EQ(fixture.gradient[9], 0);
  EXPECT_NEAR(fixture.figures.rejected_ratio, 2.0 / 13, 1e-12);
}

TEST(FixtureATest, EveryAggregation) {
  const std::pair<Aggregation, double> expected[] = {
      {Aggregation::kTokenMean, -0.126448879},       {Aggregation::kSeqMeanTokenSum, -0.410958855},
      {Aggregation::kSeqMeanTokenMean, 0.050622145}, {Aggregation::kSeqMeanTokenSumNorm, -0.102739714},
      {Aggregation::kTokenSum, -1.643835421},        {Aggregation::kPromptMean, -0.133336332}};
  for (const auto& [aggregation, loss] : expected) {
    LossOptions options = Surrogated(Surrogate::kPpo);
    options.aggregation = aggregation;
    options.max_response_tokens = 4;
    FixtureA fixture;
    EXPECT_NEAR(fixture.Loss(options), loss, kTight) << GetName(aggregation);
  }
}

TEST(FixtureATest, EveryEstimateOfTheReferenceKl) {
  FixtureA fixture;
  auto mean = [&](KlEstimator estimator, const at::Tensor& log_ratio = {}) {
    return ReferenceKl(fixture.batch.current, fixture.batch.reference, estimator, log_ratio).mean().item<double>();
  };
  EXPECT_NEAR(mean(KlEstimator::kK1), 0.186923077, kTight);      // x = n - ref
  EXPECT_NEAR(mean(KlEstimator::kK2), 0.116288462, kTight);      // x^2 / 2
  EXPECT_NEAR(mean(KlEstimator::kK3), 0.111796761, kTight);      // exp(-x) - 1 + x
  EXPECT_NEAR(mean(KlEstimator::kK3Plus), 0.111796761, kTight);  // the same value
  EXPECT_NEAR(mean(KlEstimator::kK3, fixture.batch.current - fixture.batch.proximal), 0.11444947, kTight);
}

TEST(FixtureATest, MismatchMetrics) {
  FixtureA fixture;
  fixture.Loss(Corrected(Correction::kTis));
  const LossFigures& figures = fixture.figures;
  EXPECT_NEAR(figures.mismatch_k1, -0.021538462, kTight);            // mean(b - o)
  EXPECT_NEAR(figures.kl, 0.138792178, kTight);                      // mean(rho - 1 - log rho)
  EXPECT_NEAR(figures.chi2_token, 0.823567169, kTight);              // mean(rho^2) - 1
  EXPECT_NEAR(figures.chi2_answer, 0.318946869, kTight);             // mean(exp(2 sum log rho)) - 1
  EXPECT_NEAR(figures.effective_sample_ratio, 0.873530653, kTight);  // of min(rho, 2)
  EXPECT_NEAR(figures.effective_answer_ratio, 0.937679752, kTight);  // of exp(sum log rho)
  EXPECT_NEAR(figures.perplexity_ratio, 2.73171464 / 2.773033892, kTight);
  EXPECT_NEAR(figures.mismatch_max, 1.2, 1e-12);
  EXPECT_NEAR(figures.log_perplexity_gap, (.1 + .35 / 3 + .015 + .05) / 4, 1e-12);  // |mean(o - b)| of each answer
  EXPECT_NEAR(figures.ratio_max, std::exp(.4), 1e-12);
  EXPECT_NEAR(figures.weight_max, 2, 1e-12);
  EXPECT_NEAR(figures.weight_min, std::exp(-.9), 1e-12);
  LossOptions uncapped = Corrected(Correction::kTis);
  uncapped.tis_cap = 1e9;
  fixture.Loss(uncapped);
  EXPECT_NEAR(fixture.figures.effective_sample_ratio, 0.738315109, kTight);  // of rho itself
}

TEST(FixtureATest, TheShareOfTokensWhoseClipDecided) {
  FixtureA fixture;
  fixture.Loss(Surrogated(Surrogate::kPpo));
  EXPECT_NEAR(fixture.figures.clip_ratio, 2.0 / 13, kTight);  // e^.3 and e^.35 with A > 0
  LossOptions anchored = Surrogated(Surrogate::kPpo);
  anchored.proximal = Proximal::kBypass;
  fixture.Loss(anchored);
  EXPECT_NEAR(fixture.figures.clip_ratio, 0.307692308, kTight);
  EXPECT_NEAR(fixture.figures.loss, -0.134713353, kTight);
}

TEST(FixtureATest, A3poBetweenBehaviourAndCurrentPolicy) {  // versions 3, 3, 4, 5 and 6: alpha 2/3, 2/3, 1/2, 0
  const at::Tensor b = Tensor({-1, -.5, -2, -.7}), n = Tensor({-.6, -.9, -1.5, -.7});
  const at::Tensor log_rho = InterpolatedLogRho(n - b, testing::Integers({2, 2, 1, 0}), /*linear=*/false);
  EXPECT_THAT(Values(b + log_rho), Near(kTight, {-0.733333333, -0.766666667, -1.75, -0.7}));
}

}  // namespace
}  // namespace syncopate::loss
