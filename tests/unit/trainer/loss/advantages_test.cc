#include "trainer/loss/advantages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace syncopate::loss {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;

MATCHER_P(NearWithin, tolerance, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance; }
auto Near(double tolerance, const std::vector<double>& expected) {
  return ::testing::Pointwise(NearWithin(tolerance), expected);
}

GroupOutcomes Group(const std::vector<double>& rewards, const std::vector<int64_t>& tokens = {}) {
  GroupOutcomes group;
  for (size_t i = 0; i < rewards.size(); ++i) {
    group.push_back({.reward = rewards[i], .parts = {}, .tokens = tokens.empty() ? 1 : tokens[i], .penalties = {}});
  }
  return group;
}

// The groups of fixture A: rewards 1, 0 and .25, .75, answers of 4, 3, 2 and 4 trained tokens.
std::vector<GroupOutcomes> FixtureGroups() { return {Group({1, 0}, {4, 3}), Group({.25, .75}, {2, 4})}; }

std::vector<double> GetValues(const std::vector<SampleAdvantage>& samples) {
  std::vector<double> values;
  for (const SampleAdvantage& sample : samples) values.push_back(sample.value);
  return values;
}

std::vector<double> Of(AdvantageEstimator estimator, const std::vector<GroupOutcomes>& groups) {
  return GetValues(Advantages({.estimator = estimator}, groups));
}

TEST(AdvantagesTest, FixtureA) {
  EXPECT_THAT(Of(AdvantageEstimator::kGrpo, FixtureGroups()),  // (r - mean) / (std + 1e-6)
              Near(1e-9, {0.707105781, -0.707105781, -0.707104781, 0.707104781}));
  EXPECT_THAT(Of(AdvantageEstimator::kDrGrpo, FixtureGroups()), ElementsAre(.5, -.5, -.25, .25));  // r - mean
  EXPECT_THAT(Of(AdvantageEstimator::kRloo, FixtureGroups()), ElementsAre(1, -1, -.5, .5));        // r - the other
  // r - mean, whitened over the 13 tokens.
  EXPECT_THAT(Of(AdvantageEstimator::kReinforcePlusPlusBaseline, FixtureGroups()),
              Near(1.1e-9, {1.024086911, -1.396482151, -0.791339886, 0.418944645}));
}

TEST(AdvantagesTest, GroupsOfEight) {
  const std::vector<GroupOutcomes> eight = {Group({1, 0, 0, 1, 0, 0, 0, 0})};
  EXPECT_THAT(Of(AdvantageEstimator::kGrpo, eight),
              Near(1e-9, {1.620181675, -0.540060558, -0.540060558, 1.620181675, -0.540060558, -0.540060558,
                          -0.540060558, -0.540060558}));
  EXPECT_THAT(Of(AdvantageEstimator::kRloo, eight),
              Near(1e-9, {0.857142857, -0.285714286, -0.285714286, 0.857142857, -0.285714286, -0.285714286,
                          -0.285714286, -0.285714286}));
}

TEST(AdvantagesTest, ReinforcePlusPlusWhitensDiscountedReturns) {
  const AdvantageOptions options{.estimator = AdvantageEstimator::kReinforcePlusPlus, .discount = .99};
  const std::vector<SampleAdvantage> made = Advantages(options, FixtureGroups());
  EXPECT_THAT(made[0].tokens,  // the returns are .970299, .9801, .99, 1
              Near(1.1e-9, {0.987381742, 1.011479189, 1.035820045, 1.060406767}));
  EXPECT_THAT(made[1].tokens, Near(1.1e-9, {-1.398265501, -1.398265501, -1.398265501}));
  EXPECT_THAT(made[2].tokens, Near(1.1e-9, {-0.789744114, -0.783597434}));
  EXPECT_THAT(made[3].tokens, Near(1.1e-9, {0.390969931, 0.409043017, 0.427298658, 0.4457387}));
  EXPECT_EQ(made[2].at(1), made[2].tokens[1]);
}

TEST(AdvantagesTest, ReturnsOfRewardsAtEachToken) {  // SkyRL: rewards 1, 2, 3, discount .5: 2.75, 3.5, 3
  GroupOutcomes group = Group({3}, {3});
  group[0].penalties = {-1, -2, 0};
  const AdvantageOptions options{.estimator = AdvantageEstimator::kReinforcePlusPlus, .discount = .5};
  AdvantageBatch batch(options, {group});
  EXPECT_DOUBLE_EQ(batch.moments().sum, 2.75 + 3.5 + 3);
  EXPECT_DOUBLE_EQ(batch.moments().squares, 2.75 * 2.75 + 3.5 * 3.5 + 9);
  EXPECT_THAT(batch.Finish({}).front().tokens, ElementsAre(2.75, 3.5, 3));  // no whitening
}

TEST(AdvantagesTest, PenaltiesOfTokensCountInWholeRewardsToo) {
  GroupOutcomes group = Group({1, 1}, {2, 2});
  group[0].penalties = {.25, .25};
  group[1].penalties = {0, 0};
  EXPECT_THAT(Of(AdvantageEstimator::kDrGrpo, {group}), ElementsAre(-.25, .25));
}

TEST(AdvantagesTest, Rloo) {  // SkyRL: [6, 3], [9, 12], [1] -> 3, -3, -3, 3, 0
  EXPECT_THAT(Of(AdvantageEstimator::kRloo, {Group({6, 3}), Group({9, 12}), Group({1})}), ElementsAre(3, -3, -3, 3, 0));
}

TEST(AdvantagesTest, MaxRl) {  // prime-rl: [1, 0, 0, 0] -> 3, -1, -1, -1
  EXPECT_THAT(Of(AdvantageEstimator::kMaxRl, {Group({1, 0, 0, 0})}), ElementsAre(3, -1, -1, -1));
  EXPECT_THAT(Of(AdvantageEstimator::kMaxRl, {Group({1, -1})}), Each(DoubleEq(0)));  // a mean of 0 is no scale
}

TEST(AdvantagesTest, WhiteningLeavesASingleTokenAndScalesTwo) {  // ROLL: 3.0 stays; two become -+ .70710677
  const AdvantageOptions options{.estimator = AdvantageEstimator::kReinforcePlusPlus};
  EXPECT_THAT(Advantages(options, {Group({3})})[0].tokens, ElementsAre(3));
  const auto two = Advantages(options, {Group({1, 2})});
  EXPECT_NEAR(two[0].tokens[0], -.70710677, 1e-7);
  EXPECT_NEAR(two[1].tokens[0], .70710677, 1e-7);
}

TEST(AdvantagesTest, BatchStdDividesByTheSpreadOfAllRewards) {
  const std::vector<double> advantages = Of(AdvantageEstimator::kBatchStd, {Group({1, 0}), Group({5, 5})});
  const double deviation = std::sqrt((1.75 * 1.75 + 2.75 * 2.75 + 2.25 * 2.25 * 2) / 3);  // the deviation of 1, 0, 5, 5
  EXPECT_THAT(advantages, Near(1e-6, {.5 / deviation, -.5 / deviation, 0.0, 0.0}));
}

TEST(AdvantagesTest, GdpoNormalisesEachPartBeforeItAddsThem) {
  // The second part is a hundred times larger, and hides the first part in GRPO of the sum.
  GroupOutcomes group = Group({100, 1, 101, 0});
  const double parts[4][2] = {{0, 100}, {1, 0}, {1, 100}, {0, 0}};
  for (int i = 0; i < 4; ++i) group[i].parts = {parts[i][0], parts[i][1]};
  const std::vector<double> made =
      GetValues(Advantages({.estimator = AdvantageEstimator::kGdpo}, {group}, /*weights=*/{1, 1}));
  EXPECT_NEAR(made[0], made[1], 1e-5);  // each answer has one of the two parts
  EXPECT_GT(made[2], 1);
  EXPECT_LT(made[3], -1);
  double sum = 0, squares = 0;
  for (double value : made) {
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum, 0, 1e-9);
  EXPECT_NEAR(squares / 3, 1, 1e-6);
  // Twice the weight decides between the two.
  const std::vector<double> weighted =
      GetValues(Advantages({.estimator = AdvantageEstimator::kGdpo}, {group}, /*weights=*/{2, 1}));
  EXPECT_GT(weighted[1], weighted[0]);
}

TEST(AdvantagesTest, TurnRewardsComeWithTheLastTokenOfTheirTurn) {
  // Five trained tokens, discount .5; turns end at tokens 1 and 4 with rewards -1 and 2, and a term beside them gives 3:
  //   r = (0, -1, 0, 0, 2 + 3);  G = (.5 G1, -1 + .5 G2, .5 G3, .5 G4, 5) = (-.1875, -.375, 1.25, 2.5, 5)
  GroupOutcomes group = Group({4}, {5});
  group[0].early = {{1, -1}, {4, 2}};
  const AdvantageOptions options{.estimator = AdvantageEstimator::kReinforcePlusPlus, .discount = .5};
  EXPECT_THAT(AdvantageBatch(options, {group}).Finish({}).front().tokens, ElementsAre(-.1875, -.375, 1.25, 2.5, 5));
  // All other estimators see their sum.
  const GroupOutcomes other = Group({1}, {2});
  EXPECT_THAT(Of(AdvantageEstimator::kDrGrpo, {{group[0], other[0]}}), ElementsAre(1.5, -1.5));
}

TEST(AdvantagesTest, ARejectedSampleGetsNothingAndTheOthersAreAsWithoutIt) {
  for (AdvantageEstimator estimator :
       {AdvantageEstimator::kGrpo, AdvantageEstimator::kDrGrpo, AdvantageEstimator::kRloo,
        AdvantageEstimator::kReinforcePlusPlus, AdvantageEstimator::kReinforcePlusPlusBaseline,
        AdvantageEstimator::kMaxRl, AdvantageEstimator::kGdpo, AdvantageEstimator::kBatchStd}) {
    const AdvantageOptions options{.estimator = estimator, .discount = .9};
    GroupOutcomes without = Group({1, 0, .5}, {4, 3, 2});
    for (SampleOutcome& sample : without) sample.parts = {sample.reward, 1 - sample.reward * sample.reward};
    GroupOutcomes with = without;
    with.insert(with.begin() + 1, {.reward = 100, .parts = {100, 7}, .tokens = 0, .rejected = true});
    const GroupOutcomes second = {without[2], without[1]};
    const std::vector<double> weights = {1, 2};
    const std::vector<SampleAdvantage> expected = Advantages(options, {without, second}, weights);
    const std::vector<SampleAdvantage> made = Advantages(options, {with, second}, weights);
    ASSERT_EQ(made.size(), 6u);
    EXPECT_FALSE(made[1].HasSignal());
    for (size_t i : {0, 2, 3, 4, 5}) {
      EXPECT_EQ(made[i].value, expected[i < 1 ? i : i - 1].value);
      EXPECT_EQ(made[i].tokens, expected[i < 1 ? i : i - 1].tokens);
    }
    EXPECT_TRUE(made[0].HasSignal());
  }
}

TEST(AdvantagesTest, WithFewerThanTwoOthersAGroupHasNoSignal) {
  GroupOutcomes group = Group({1, 0}, {4, 3});
  for (SampleOutcome& sample : group) sample.parts = {sample.reward};
  group[1].rejected = true;
  for (AdvantageEstimator estimator :
       {AdvantageEstimator::kGrpo, AdvantageEstimator::kDrGrpo, AdvantageEstimator::kRloo,
        AdvantageEstimator::kReinforcePlusPlusBaseline, AdvantageEstimator::kMaxRl, AdvantageEstimator::kGdpo,
        AdvantageEstimator::kBatchStd}) {
    for (const SampleAdvantage& sample : Advantages({.estimator = estimator}, {group}, {1})) {
      EXPECT_FALSE(sample.HasSignal());
    }
  }
  group[0].rejected = true;
  EXPECT_FALSE(Advantages({}, {group})[0].HasSignal());
  TrajectoryGroup answers;
  answers.samples.resize(3);
  for (int i = 0; i < 3; ++i) answers.samples[i].reward = static_cast<float>(i);
  answers.samples[1].rejected = true;
  EXPECT_THAT(GetRewards(answers), ElementsAre(0, 2));
  answers.samples[0].rejected = true;
  EXPECT_TRUE(HasZeroVariance(GetRewards(answers)));
  answers.samples[2].rejected = true;
  EXPECT_TRUE(HasZeroVariance(GetRewards(answers)));
}

TEST(AdvantagesTest, AGroupWithoutSignalGetsZeros) {
  for (AdvantageEstimator estimator :
       {AdvantageEstimator::kGrpo, AdvantageEstimator::kDrGrpo, AdvantageEstimator::kRloo, AdvantageEstimator::kMaxRl,
        AdvantageEstimator::kBatchStd}) {
    EXPECT_THAT(Of(estimator, {Group({.7}), Group({.3, .3, .3}), Group({0, 1})}).at(0), DoubleEq(0));
    EXPECT_THAT(Of(estimator, {Group({.7}), Group({.3, .3, .3}), Group({0, 1})}).at(2), DoubleEq(0));
  }
  for (AdvantageEstimator estimator :
       {AdvantageEstimator::kReinforcePlusPlus, AdvantageEstimator::kReinforcePlusPlusBaseline}) {
    for (const SampleAdvantage& sample : Advantages({.estimator = estimator}, {Group({.3, .3}), Group({.3})})) {
      EXPECT_FALSE(sample.HasSignal());
    }
  }
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

TEST(AdvantagesTest, DoNotDependOnWhichRankHoldsAGroup) {
  const std::vector<GroupOutcomes> groups = {Group({1, 0}, {4, 3}), Group({.25, .75}, {2, 4}),
                                             Group({3, 1, 2}, {1, 9, 2})};
  for (AdvantageEstimator estimator :
       {AdvantageEstimator::kReinforcePlusPlus, AdvantageEstimator::kReinforcePlusPlusBaseline,
        AdvantageEstimator::kBatchStd, AdvantageEstimator::kGrpo}) {
    const AdvantageOptions options{.estimator = estimator,
                                   .discount = estimator == AdvantageEstimator::kReinforcePlusPlus ? .9 : 1};
    std::vector<SampleAdvantage> whole = Advantages(options, groups);
    AdvantageBatch first(options, {groups[0]}), second(options, {groups[1], groups[2]});
    BatchMoments all = first.moments();
    all += second.moments();
    std::vector<SampleAdvantage> dealt = first.Finish(all);
    for (SampleAdvantage& sample : second.Finish(all)) dealt.push_back(std::move(sample));
    ASSERT_EQ(dealt.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_NEAR(dealt[i].value, whole[i].value, 1e-12);
      EXPECT_THAT(dealt[i].tokens, Near(1e-12, whole[i].tokens));
    }
  }
}

}  // namespace
}  // namespace syncopate::loss
