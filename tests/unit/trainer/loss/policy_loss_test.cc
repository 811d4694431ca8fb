#include "trainer/loss/policy_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/philox.h"
#include "tests/unit/trainer/loss/fixture_a.h"

namespace syncopate::loss {
namespace {

using ::testing::Each;
using testing::FixtureA;
using testing::Integers;
using testing::Near;
using testing::OneAnswer;
using testing::Tensor;
using testing::Values;

// Plausible float32 tokens in answers of 7 tokens.
TokenBatch RandomBatch(int64_t tokens, uint64_t seed) {
  uint64_t counter = 0;
  auto draw = [&] { return static_cast<double>(Philox4x32(seed, counter++)[0]) / 4294967296.0; };
  std::vector<double> b, o, n, a;
  std::vector<int64_t> answer, lengths;
  for (int64_t i = 0; i < tokens; ++i) {
    b.push_back(-3 * draw());
    o.push_back(b.back() + draw() - 0.5);
    n.push_back(o.back() + 0.8 * draw() - 0.4);
    if (i % 7 == 0) lengths.push_back(0);
    a.push_back(i % 7 == 0 ? 4 * draw() - 2 : a.back());
    ++lengths.back();
    answer.push_back(i / 7);
  }
  b[3] = -std::numeric_limits<double>::infinity();
  return {.current = Tensor(n, at::kFloat),
          .behaviour = Tensor(b, at::kFloat),
          .advantage = Tensor(a, at::kFloat),
          .proximal = Tensor(o, at::kFloat),
          .answer = Integers(answer),
          .answer_tokens = Integers(lengths)};
}

// The first version of decoupled PPO with the token corrections, in one formula.
at::Tensor PlainFormula(const TokenBatch& batch, Correction correction, double tokens) {
  const at::Tensor log_rho = at::clamp(batch.proximal - batch.behaviour, -20.0, 20.0).detach();
  const at::Tensor rho = at::exp(log_rho);
  auto clipped = [&](const at::Tensor& log_ratio) {
    const at::Tensor ratio = at::exp(log_ratio);
    return at::maximum(-batch.advantage * ratio, -batch.advantage * at::clamp(ratio, 1.0 - 0.2, 1.0 + 0.28));
  };
  if (correction == Correction::kNone) {
    return clipped(at::clamp(batch.current - batch.behaviour, -20.0, 20.0)).sum() / tokens;
  }
  const at::Tensor surrogate = clipped(at::clamp(batch.current - batch.proximal, -20.0, 20.0));
  const at::Tensor weight =
      correction == Correction::kTis ? at::clamp_max(rho, 2.0) : rho * at::logical_and(rho.ge(0.5), rho.le(2.0));
  return (weight * surrogate).sum() / tokens;
}

// The gradient is zero also where a penalty would give a gradient, and for any weights.
TEST(PolicyLossTest, TokensBeyondTheAgeLimitHaveNoGradientAndStayInEveryDenominator) {
  constexpr int64_t kTokens = 28, kLimit = 2;
  TokenBatch batch = RandomBatch(kTokens, 5);
  batch.age = at::remainder(at::arange(kTokens, at::kLong), 5);
  batch.entropy = at::full({kTokens}, 1.5, at::kFloat);
  batch.reference = batch.current - 0.25;
  batch.group_tokens = at::full({4}, 14.0, at::kFloat);
  const at::Tensor within = batch.age.le(kLimit).to(at::kFloat);
  const BatchExtent extent{.tokens = kTokens, .answers = 4, .groups = 2};
  for (Correction correction : {Correction::kMis, Correction::kTis, Correction::kNone}) {
    for (Aggregation aggregation : {Aggregation::kTokenMean, Aggregation::kSeqMeanTokenMean,
                                    Aggregation::kSeqMeanTokenSumNorm, Aggregation::kPromptMean}) {
      LossOptions options;
      options.correction = correction;
      options.aggregation = aggregation;
      options.max_response_tokens = 7;
      options.entropy_coefficient = 0.01;
      options.kl_coefficient = 0.1;
      const LossGradients all = DifferentiateLoss(batch, extent, options);
      options.max_token_age = kLimit;
      const LossGradients limited = DifferentiateLoss(batch, extent, options);
      EXPECT_TRUE(all.dlogprob.ne(0).logical_and(within.eq(0)).any().item<bool>());
      EXPECT_TRUE(limited.dlogprob.equal(all.dlogprob * within)) << GetName(correction) << GetName(aggregation);
      EXPECT_TRUE(limited.dentropy.equal(all.dentropy * within)) << GetName(correction) << GetName(aggregation);
      const LossMeasurement measured = MeasureLoss(batch, extent, options);
      for (int age = 0; age < kLossAges; ++age) {
        const double count = measured.sums[GetPlace(age, kAgeTokens)].item<double>();
        EXPECT_EQ(count > 0, age <= kLimit) << age;
      }
    }
  }
}

TEST(PolicyLossTest, TheDefaultsAreDecoupledPpoBitForBit) {
  for (Correction correction : {Correction::kMis, Correction::kTis, Correction::kNone}) {
    for (int64_t tokens : {7, 13, 1001}) {
      TokenBatch batch = RandomBatch(tokens, 42);
      LossOptions options;  // all options are the defaults, except:
      options.correction = correction;
      batch.current.requires_grad_(true);
      const at::Tensor expected = PlainFormula(batch, correction, static_cast<double>(tokens));
      expected.backward();
      const at::Tensor gradient = batch.current.grad().clone();
      const BatchExtent extent{.tokens = static_cast<double>(tokens), .answers = 1, .groups = 1};
      EXPECT_TRUE(LossShare(batch, extent, options).equal(expected)) << GetName(correction);
      EXPECT_TRUE(DifferentiateLoss(batch, extent, options).dlogprob.equal(gradient)) << GetName(correction);
      EXPECT_TRUE(gradient.ne(0).any().item<bool>());
    }
  }
}

// The weights have not moved since the tokens were made, so all ratios are 1.
TEST(PolicyLossTest, OnPolicyReinforcePpoAndCispoHaveTheSameGradient) {
  TokenBatch batch = RandomBatch(70, 1);
  batch.behaviour = batch.proximal = batch.current;
  const BatchExtent extent{.tokens = 70, .answers = 10, .groups = 1};
  LossOptions options;
  options.surrogate = Surrogate::kReinforce;
  const at::Tensor reinforce = DifferentiateLoss(batch, extent, options).dlogprob;
  for (Surrogate surrogate : {Surrogate::kPpo, Surrogate::kCispo, Surrogate::kAipo, Surrogate::kDppo}) {
    options.surrogate = surrogate;
    EXPECT_TRUE(DifferentiateLoss(batch, extent, options).dlogprob.equal(reinforce)) << GetName(surrogate);
  }
  options.surrogate = Surrogate::kSapo;  // 4 / tau sigmoid'(0) tau = 1
  EXPECT_TRUE(at::allclose(DifferentiateLoss(batch, extent, options).dlogprob, reinforce));
}

TEST(PolicyLossTest, TheFirstUpdateNeedsNoProximalLogProbs) {
  TokenBatch batch = RandomBatch(70, 2);
  batch.proximal = batch.current;
  const BatchExtent extent{.tokens = 70, .answers = 10, .groups = 1};
  const at::Tensor given = DifferentiateLoss(batch, extent, {}).dlogprob;
  batch.proximal = at::Tensor();
  EXPECT_TRUE(DifferentiateLoss(batch, extent, {}).dlogprob.equal(given));
}

TEST(PolicyLossTest, WeightsHaveNoGradient) {  // d loss / d n of the surrogate alone, times the weight's value
  for (Correction correction : {Correction::kTis, Correction::kSeqTis, Correction::kSeqMaskTis}) {
    FixtureA fixture;
    fixture.batch.proximal = at::Tensor();  // rho = exp(sg(n) - b): a weight with gradient would show
    LossOptions options;
    options.correction = correction;
    options.geometric_low = 0;
    options.geometric_high = 1e9;
    fixture.Loss(options);
    const std::vector<double> gradient = fixture.gradient;
    for (size_t i : fixture.places) {
      const double expected = -testing::kGrpo[i / 4] * fixture.figures.weight_max / 13;
      EXPECT_LE(std::abs(gradient[i]), std::abs(expected) + 1e-12);
      EXPECT_NE(gradient[i], 0);
    }
  }
}

TEST(PolicyLossTest, TheGradientDoesNotFollowWhatIsMasked) {
  FixtureA fixture;
  LossOptions options;  // mis: tokens 12 (e^1.2) and 15 (e^-.9) are masked
  fixture.Loss(options);
  const std::vector<double> before = fixture.gradient;
  EXPECT_EQ(before[12], 0);
  fixture.batch.behaviour[9] -= 0.5;  // the token at place 12
  fixture.Loss(options);
  EXPECT_EQ(fixture.gradient, before);
}

TEST(PolicyLossTest, MaskedTokensStayInTheDenominator) {
  FixtureA fixture;
  LossOptions options;
  options.correction = Correction::kNone;
  options.proximal = Proximal::kRecompute;
  fixture.Loss(options);
  const double alone = fixture.gradient[0], other = fixture.gradient[4];
  options.veto = 0.42;  // only the last answer has such a token, e^-.9
  fixture.Loss(options);
  EXPECT_EQ(fixture.gradient[0], alone);
  EXPECT_EQ(fixture.gradient[4], other);
  for (size_t i : {12, 13, 14, 15}) EXPECT_EQ(fixture.gradient[i], 0);
  EXPECT_NEAR(fixture.figures.rejected_ratio, 4.0 / 13, 1e-12);
}

TEST(PolicyLossTest, K3PlusHasTheValueOfK3AndTheGradientOfK2) {
  FixtureA k2, k3, plus;
  LossOptions options;
  options.kl_coefficient = 0.1;
  options.kl_estimator = KlEstimator::kK2;
  k2.Loss(options);
  options.kl_estimator = KlEstimator::kK3;
  const double value = k3.Loss(options);
  options.kl_estimator = KlEstimator::kK3Plus;
  EXPECT_NEAR(plus.Loss(options), value, 1e-12);
  EXPECT_THAT(plus.gradient, Near(1e-12, k2.gradient));
  EXPECT_NEAR(plus.figures.reference_kl, 0.111796761, 1.1e-9);
}

// Over a vocabulary of four tokens, E_b[gradient of exp(n - b) k3] must equal the gradient of KL(n || ref), and
// likewise for k1 and k2 + 1.
TEST(PolicyLossTest, AnImportanceWeightedKlIsUnbiasedOffPolicy) {
  const at::Tensor logits = Tensor({.3, -.2, .5, 0}), b = at::log_softmax(Tensor({0, .4, -.3, .2}), 0);
  const at::Tensor ref = at::log_softmax(Tensor({-.5, .1, .3, .6}), 0);
  at::Tensor exact_leaf = logits.clone().set_requires_grad(true);
  const at::Tensor exact_n = at::log_softmax(exact_leaf, 0);
  (exact_n.exp() * (exact_n - ref)).sum().backward();
  for (KlEstimator estimator : {KlEstimator::kK1, KlEstimator::kK3}) {
    at::Tensor leaf = logits.clone().set_requires_grad(true);
    TokenBatch batch = OneAnswer({0, 0, 0, 0}, {0, 0, 0, 0}, Values(b), {0, 0, 0, 0});
    batch.current = at::log_softmax(leaf, 0);
    batch.reference = ref;
    batch.proximal = at::Tensor();
    LossOptions options;
    options.correction = Correction::kNone;
    options.aggregation = Aggregation::kTokenSum;
    options.kl_coefficient = 1;
    options.kl_estimator = estimator;
    options.kl_importance = true;
    // Each of the four tokens counts with its probability under b.
    at::Tensor expectation = at::zeros({4}, at::kDouble);
    for (int64_t token = 0; token < 4; ++token) {
      TokenBatch drawn = SliceTokens(batch, token, 1);
      drawn.answer_tokens = Integers({1});
      const at::Tensor share = LossShare(drawn, {.tokens = 1, .answers = 1, .groups = 1}, options);
      leaf.mutable_grad() = at::Tensor();
      share.backward({}, /*retain_graph=*/true);
      expectation += b.exp()[token] * leaf.grad();
    }
    EXPECT_TRUE(at::allclose(expectation, exact_leaf.grad(), 1e-9, 1e-12)) << GetName(estimator);
  }
}

TEST(PolicyLossTest, TheEntropyBonusPullsEntropyUp) {
  FixtureA fixture;
  fixture.batch.entropy = at::full({13}, 0.8323955818399388, at::kDouble);  // of logits 1, 2, 3
  LossOptions options;
  options.entropy_coefficient = 0.01;
  const LossGradients made = DifferentiateLoss(fixture.batch, fixture.extent, options);
  EXPECT_THAT(Values(made.dentropy), Each(::testing::DoubleNear(-0.01 / 13, 1e-15)));
  const double with = fixture.Loss(options);
  EXPECT_NEAR(fixture.figures.entropy, 0.8323955818399388, 1e-12);
  options.entropy_coefficient = 0;
  EXPECT_NEAR(with, fixture.Loss(options) - 0.01 * 0.8323955818399388, 1e-12);
  EXPECT_FALSE(DifferentiateLoss(fixture.batch, fixture.extent, options).dentropy.defined());
}

TEST(PolicyLossTest, TheTopProbabilityIsAMeanOverTokensAndPartOfNoLoss) {
  FixtureA fixture;
  LossOptions options;
  const double without = fixture.Loss(options);
  EXPECT_EQ(fixture.figures.top_probability, 0);
  fixture.batch.top_probability = at::full({13}, 0.25, at::kDouble);
  fixture.batch.top_probability[3].fill_(0.9);
  EXPECT_EQ(fixture.Loss(options), without);
  EXPECT_NEAR(fixture.figures.top_probability, (12 * 0.25 + 0.9) / 13, 1e-12);
}

TEST(PolicyLossTest, MismatchIsSplitByAge) {
  FixtureA fixture;
  fixture.batch.age = Integers({0, 0, 0, 0, 1, 1, 1, 3, 3, 8, 9, 100, 0});
  fixture.Loss({});
  const auto& ages = fixture.figures.ages;
  EXPECT_EQ(ages[0].tokens, 5);
  EXPECT_EQ(ages[1].tokens, 3);
  EXPECT_EQ(ages[2].tokens, 0);
  EXPECT_EQ(ages[3].tokens, 2);
  EXPECT_EQ(ages[8].tokens, 3);  // older tokens count together
  EXPECT_NEAR(ages[0].k1, -(.1 - .2 + .5 + 0 - .9) / 5, 1e-12);
  EXPECT_NEAR(ages[1].k1, -(-.05 + .3 - .6) / 3, 1e-12);
  EXPECT_NEAR(ages[0].rejected, 1.0 / 5, 1e-12);  // e^-.9
  EXPECT_NEAR(ages[8].rejected, 1.0 / 3, 1e-12);  // e^1.2
  double k3 = 0;
  for (const auto& age : ages) k3 += age.k3 * age.tokens;
  EXPECT_NEAR(k3 / 13, fixture.figures.kl, 1e-12);
}

TEST(PolicyLossTest, ProbabilitiesThatAgreeAreCorrelated) {
  FixtureA fixture;
  fixture.batch.proximal = fixture.batch.behaviour;
  fixture.Loss({});
  EXPECT_NEAR(fixture.figures.probability_correlation, 1, 1e-12);
  EXPECT_NEAR(fixture.figures.kl, 0, 1e-15);
  FixtureA other;
  other.Loss({});
  EXPECT_LT(other.figures.probability_correlation, 0.9);
}

TEST(PolicyLossTest, ExtremeLogProbsStayFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (Correction correction : {Correction::kMis, Correction::kTis, Correction::kNone, Correction::kSeqTis}) {
    LossOptions options;
    options.correction = correction;
    const TokenBatch batch = OneAnswer({-1.0, -40.0, -0.1}, {-1.0, -1.0, -30.0}, {-infinity, -31.0, -0.1}, {1, -1, 1});
    const BatchExtent extent{.tokens = 3, .answers = 1, .groups = 1};
    EXPECT_TRUE(std::isfinite(LossShare(batch, extent, options).item<double>()));
    EXPECT_TRUE(at::isfinite(DifferentiateLoss(batch, extent, options).dlogprob).all().item<bool>());
    EXPECT_TRUE(at::isfinite(MeasureLoss(batch, extent, options).sums).all().item<bool>());
  }
}

}  // namespace
}  // namespace syncopate::loss
