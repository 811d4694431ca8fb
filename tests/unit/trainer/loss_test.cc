#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trainer/loss/advantages.h"
#include "trainer/loss/policy_loss.h"

// Fixture A: four sequences of four tokens in two groups, 13 of them trained on. The expected figures were computed in
// float64 by an independent implementation of the same formulas.
namespace syncopate::trainer {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::Pointwise;

MATCHER_P(NearWithin, tolerance, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance; }

const std::vector<double> kBehaviour = {-1,   -.5, -2,   -.7, -.3, -1.2, -.9,  -1.5,
                                        -2.2, -.4, -1.1, -.6, -.8, -.8,  -1.6, -.2};
const std::vector<double> kOldMinusBehaviour = {.1,  -.2, .5,   0,   -.05, .3,  -.6, .2,
                                                .02, .01, -.03, .04, 1.2,  -.1, 0,   -.9};
const std::vector<double> kNewMinusOld = {.3, -.3, .05, 0, .15, -.1, .4, -.25, 0, .25, -.5, .1, -.2, .35, .1, .05};
const std::vector<int> kMask = {1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1};
const std::vector<double> kRewards = {1, 0, .25, .75};
constexpr double kTokens = 13;

std::vector<double> FixtureAdvantages() {
  std::vector<double> first = GrpoAdvantages({kRewards[0], kRewards[1]});
  std::vector<double> second = GrpoAdvantages({kRewards[2], kRewards[3]});
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

struct Fixture {
  explicit Fixture(at::ScalarType dtype) {
    std::vector<double> b, o, n, a;
    const std::vector<double> advantages = FixtureAdvantages();
    for (size_t i = 0; i < kMask.size(); ++i) {
      if (kMask[i] == 0) continue;
      places.push_back(i);
      b.push_back(kBehaviour[i]);
      o.push_back(b.back() + kOldMinusBehaviour[i]);
      n.push_back(o.back() + kNewMinusOld[i]);
      a.push_back(advantages[i / 4]);
    }
    auto tensor = [dtype](const std::vector<double>& values) {
      return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(dtype);
    };
    input = {tensor(n).set_requires_grad(true), tensor(o), tensor(b), tensor(a)};
  }

  // Token-mean loss; its gradient in fixture layout goes to `gradient`.
  double Loss(const PolicyLossOptions& options) {
    sums = PolicyLoss(input, options);
    at::Tensor mean = sums.loss / kTokens;
    input.current.mutable_grad() = at::Tensor();
    mean.backward();
    gradient.assign(16, 0.0);
    at::Tensor grad = input.current.grad().to(at::kDouble);
    for (size_t i = 0; i < places.size(); ++i) gradient[places[i]] = grad[i].item<double>();
    return mean.item<double>();
  }

  std::vector<size_t> places;
  PolicyLossInput input;
  PolicyLossSums sums;
  std::vector<double> gradient;
};

PolicyLossOptions Options(Correction correction, double high = 0.2) {
  PolicyLossOptions options;
  options.correction = correction;
  options.clip_high = high;
  return options;
}

TEST(AdvantagesTest, GrpoEqualsTheFixture) {
  EXPECT_THAT(FixtureAdvantages(), Pointwise(NearWithin(1e-9), {0.707105781, -0.707105781, -0.707104781, 0.707104781}));
  EXPECT_THAT(GrpoAdvantages({1, 0, 0, 1, 0, 0, 0, 0}),
              Pointwise(NearWithin(1e-9), {1.620181675, -0.540060558, -0.540060558, 1.620181675, -0.540060558,
                                           -0.540060558, -0.540060558, -0.540060558}));
}

TEST(AdvantagesTest, AGroupWithoutSignalGetsZeros) {
  EXPECT_THAT(GrpoAdvantages({0.7}), ElementsAre(DoubleEq(0)));
  EXPECT_THAT(GrpoAdvantages({0.3, 0.3, 0.3}), ElementsAre(0, 0, 0));
  EXPECT_TRUE(HasZeroVariance({0.3, 0.3}));
  EXPECT_FALSE(HasZeroVariance({0.3, 0.30001}));
}

TEST(AdvantagesTest, SumToZeroAndStayFiniteForNearlyEqualRewards) {
  double sum = 0;
  for (double advantage : GrpoAdvantages({1.0, 1.00001, 1.0, 1.0})) {
    EXPECT_TRUE(std::isfinite(advantage));
    sum += advantage;
  }
  EXPECT_NEAR(sum, 0, 1e-9);
}

TEST(PolicyLossTest, UncorrectedIsPpoAnchoredOnTheBehaviourPolicy) {
  Fixture fixture(at::kDouble);
  EXPECT_NEAR(fixture.Loss(Options(Correction::kNone)), -0.134713353, 1e-9);
  EXPECT_THAT(fixture.gradient, Pointwise(NearWithin(1e-9), {0.0, -0.032990872, 0.0, -0.054392752, 0.060113288,
                                                             0.066435458, 0.044533019, 0.0, 0.05549148, 0.070543497,
                                                             0.0, 0.0, 0.0, 0.0, -0.060113203, -0.023248242}));
}

TEST(PolicyLossTest, DecoupledWithTokenTisEqualsTheFixture) {
  Fixture fixture(at::kDouble);
  EXPECT_NEAR(fixture.Loss(Options(Correction::kTis)), -0.18816642, 1e-8);
  EXPECT_THAT(fixture.gradient, Pointwise(NearWithin(1e-9), {0.0, -0.032990872, -0.094276402, -0.054392752, 0.060113288,
                                                             0.066435458, 0.044533019, 0.0, 0.05549148, 0.070543497,
                                                             0.0, 0.0, -0.089065912, 0.0, -0.060113203, -0.023248242}));
  EXPECT_EQ(fixture.sums.rejected, 1);  // e^1.2 is over the cap
}

TEST(PolicyLossTest, DecoupledWithoutACapEqualsTheFixture) {
  PolicyLossOptions options = Options(Correction::kTis);
  options.tis_cap = 1e9;
  Fixture fixture(at::kDouble);
  EXPECT_NEAR(fixture.Loss(options), -0.246955129, 1e-9);
  EXPECT_NEAR(fixture.gradient[12], -0.147854621, 1e-9);
}

TEST(PolicyLossTest, DecoupledWithTheTokenMisBandEqualsTheFixture) {
  Fixture fixture(at::kDouble);
  EXPECT_NEAR(fixture.Loss(Options(Correction::kMis)), -0.075852266, 1e-9);
  EXPECT_THAT(fixture.gradient, Pointwise(NearWithin(1e-9), {0.0, -0.032990872, -0.094276402, -0.054392752, 0.060113288,
                                                             0.066435458, 0.044533019, 0.0, 0.05549148, 0.070543497,
                                                             0.0, 0.0, 0.0, 0.0, -0.060113203, 0.0}));
  EXPECT_EQ(fixture.sums.rejected, 2);  // e^1.2 and e^-0.9 are outside [0.5, 2]
  EXPECT_NEAR(fixture.sums.mismatch_k3 / kTokens, 0.138792178, 1e-9);
}

TEST(PolicyLossTest, OnPolicyDataGivesPlainClippedPpo) {
  for (auto [high, expected] : {std::pair{0.2, -0.126448879}, std::pair{0.28, -0.135151713}}) {
    Fixture fixture(at::kDouble);
    fixture.input.behaviour = fixture.input.proximal;
    EXPECT_NEAR(fixture.Loss(Options(Correction::kMis, high)), expected, 1e-9);
    EXPECT_THAT(fixture.gradient,
                Pointwise(NearWithin(1e-9),
                          {0.0, -0.040295142, -0.057181528, -0.054392752, 0.063195362, 0.049216598, 0.081144451, 0.0,
                           0.054392675, 0.069841578, 0.0, 0.0, -0.044532956, 0.0, -0.060113203, -0.057181448}));
  }
}

TEST(PolicyLossTest, CountsTokensWhoseClipDecided) {
  Fixture fixture(at::kDouble);
  fixture.Loss(Options(Correction::kNone));
  EXPECT_NEAR(fixture.sums.clipped / kTokens, 0.307692308, 1e-9);
  fixture.Loss(Options(Correction::kMis));
  EXPECT_EQ(fixture.sums.clipped, 2);  // e^0.3 and e^0.35 with a positive advantage
}

TEST(PolicyLossTest, AgreesInSinglePrecision) {
  Fixture fixture(at::kFloat);
  EXPECT_NEAR(fixture.Loss(Options(Correction::kMis)), -0.075852266, 1e-5);
  EXPECT_NEAR(fixture.Loss(Options(Correction::kTis)), -0.18816642, 1e-5);
  EXPECT_NEAR(fixture.Loss(Options(Correction::kNone)), -0.134713353, 1e-5);
}

TEST(PolicyLossTest, TheBandIsInclusive) {
  PolicyLossInput input = {at::zeros({2}, at::kDouble), at::zeros({2}, at::kDouble),
                           -at::log(at::tensor({0.5, 2.0}, at::kDouble)), at::ones({2}, at::kDouble)};
  // rho is exp(log 0.5) and exp(log 2), which floating point may put a rounding error outside: widen by that much.
  PolicyLossOptions options = Options(Correction::kMis);
  options.mis_low -= 1e-15;
  options.mis_high += 1e-15;
  EXPECT_EQ(PolicyLoss(input, options).rejected, 0);
  options.mis_low = 0.5 + 1e-9;
  EXPECT_EQ(PolicyLoss(input, options).rejected, 1);
}

TEST(PolicyLossTest, ExtremeLogProbsStayFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (Correction correction : {Correction::kMis, Correction::kTis, Correction::kNone}) {
    PolicyLossInput input = {at::tensor({-1.0, -40.0, -0.1}, at::kDouble).set_requires_grad(true),
                             at::tensor({-1.0, -1.0, -30.0}, at::kDouble),
                             at::tensor({-infinity, -31.0, -0.1}, at::kDouble), at::ones({3}, at::kDouble)};
    PolicyLossSums sums = PolicyLoss(input, Options(correction));
    sums.loss.backward();
    EXPECT_TRUE(std::isfinite(sums.loss.item<double>()));
    EXPECT_TRUE(at::isfinite(input.current.grad()).all().item<bool>());
  }
}

TEST(PolicyLossTest, RefusesOptionsThatCannotBe) {
  PolicyLossOptions options;
  EXPECT_TRUE(options.Validate().ok());
  options.mis_low = 1.5;
  EXPECT_EQ(ErrorReason(options.Validate()), "BAD_STEP_OPTIONS");
  options = {};
  options.clip_low = 1.0;
  EXPECT_EQ(ErrorReason(options.Validate()), "BAD_STEP_OPTIONS");
}

}  // namespace
}  // namespace syncopate::trainer
