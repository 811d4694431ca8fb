#include "trainer/loss/outcomes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncopate::loss {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Trajectory Sample(int length, float reward, std::vector<RewardPart> parts = {}) {
  Trajectory sample;
  sample.tokens.assign(length, 1);
  sample.logprobs.assign(length, -1.0f);
  sample.spans = {{{1, 3}, 0, length}};
  sample.reward = reward;
  sample.reward_parts = std::move(parts);
  return sample;
}

TrajectoryGroup Group(std::vector<Trajectory> samples) {
  TrajectoryGroup group;
  group.samples = std::move(samples);
  return group;
}

TEST(OverlongTest, DapoFallsLinearlyOverTheCache) {  // longest 20, cache 5
  LossOptions options;
  options.overlong = Overlong::kDapo;
  options.max_response_tokens = 20;
  options.overlong_cache = 5;
  const std::pair<int64_t, double> expected[] = {{14, 0}, {15, 0}, {16, -.2}, {18, -.6}, {20, -1}, {21, -1}};
  for (const auto& [length, penalty] : expected)
    EXPECT_NEAR(OverlongPenalty(length, options), penalty, 1e-12) << length;
  options.overlong_factor = .5;
  EXPECT_NEAR(OverlongPenalty(20, options), -.5, 1e-12);
}

TEST(OverlongTest, LinearIsAShareOfTheLongestAnswer) {
  LossOptions options;
  options.overlong = Overlong::kLinear;
  options.max_response_tokens = 20;
  options.overlong_factor = .4;
  EXPECT_NEAR(OverlongPenalty(5, options), -.1, 1e-12);
}

TEST(OverlongTest, AMaskedAnswerIsComparedWithAndNotTrainedOn) {
  TrajectoryGroup group = Group({Sample(4, 0), Sample(3, 1)});
  group.samples[0].finish = FinishReason::kLength;
  LossOptions options;
  auto kept = GetOutcomes({&group}, options);
  EXPECT_EQ((*kept)[0][0].tokens, 4);
  options.overlong = Overlong::kMask;
  auto masked = GetOutcomes({&group}, options);
  EXPECT_EQ((*masked)[0][0].tokens, 0);
  EXPECT_EQ((*masked)[0][1].tokens, 3);
  EXPECT_GT(Advantages(options.advantage, *masked)[1].value, 0);
  EXPECT_TRUE(IsMasked(group.samples[0], options));
  EXPECT_FALSE(IsMasked(group.samples[1], options));
}

TEST(OutcomesTest, ThePenaltyOfTheReferencePolicyIsK1OfEachToken) {  // beta (b - ref), b = -1
  const TrajectoryGroup group = Group({Sample(2, 1), Sample(1, 0)});
  LossOptions options;
  options.kl_coefficient = .1;
  options.kl_in_reward = true;
  auto outcomes = GetOutcomes({&group}, options, {}, {{-2, -1}, {-.5}});
  EXPECT_THAT((*outcomes)[0][0].penalties, ElementsAre(DoubleNear(.1, 1e-12), DoubleNear(0, 1e-12)));
  EXPECT_THAT((*outcomes)[0][1].penalties, ElementsAre(DoubleNear(-.05, 1e-12)));
}

TEST(OutcomesTest, GdpoTakesPartsByNameAndSaysWhichIsMissing) {
  const TrajectoryGroup group =
      Group({Sample(1, 1.5, {{"right", 1}, {"form", .5}}), Sample(1, .5, {{"right", 0}, {"form", .5}})});
  LossOptions options;
  options.advantage.estimator = AdvantageEstimator::kGdpo;
  EXPECT_EQ(*PartWeights({&group}, options.advantage), (std::vector<RewardWeight>{{"right", 1}, {"form", 1}}));
  options.advantage.reward_weights = {{"form", 2}, {"right", 1}};
  auto parts = PartWeights({&group}, options.advantage);
  EXPECT_EQ(*parts, options.advantage.reward_weights);
  auto outcomes = GetOutcomes({&group}, options, *parts);
  EXPECT_THAT((*outcomes)[0][0].parts, ElementsAre(.5, 1));
  auto missing = GetOutcomes({&group}, options, {{"speed", 1}});
  EXPECT_EQ(ErrorReason(missing.status()), "NO_REWARD_PARTS");
  EXPECT_THAT(missing.status().message(), HasSubstr("no reward part speed"));
  EXPECT_THAT(missing.status().message(), HasSubstr("right, form"));
  const TrajectoryGroup plain = Group({Sample(1, 1), Sample(1, 0)});
  options.advantage.reward_weights = {};
  EXPECT_EQ(ErrorReason(PartWeights({&plain}, options.advantage).status()), "NO_REWARD_PARTS");
}

// Tokens 1 and 2 of five are a tool's answer.
Trajectory WithGivenTokens() {
  Trajectory sample = Sample(5, 1);
  sample.given = {{1, 3}};
  sample.logprobs = {-1, 0, 0, -2, -3};
  sample.spans = {{{1, 3}, 0, 1}, {{1, 4}, 3, 5}};
  return sample;
}

TEST(GivenTokensTest, LengthsAgesAndPenaltiesAreOfWrittenTokensInTheirOrder) {
  const Trajectory sample = WithGivenTokens();
  EXPECT_EQ(WrittenTokens(sample), 3);
  EXPECT_THAT(GetAges(sample, 5), ElementsAre(2, 1, 1));
  TrajectoryGroup group = Group({sample});
  LossOptions options;
  options.kl_coefficient = 1;
  const std::vector<std::vector<float>> reference = {{-1.5f, -2.5f, -3.5f}};
  auto outcomes = GetOutcomes({&group}, options, {}, reference);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_EQ((*outcomes)[0][0].tokens, 3);
  EXPECT_THAT((*outcomes)[0][0].penalties, ElementsAre(0.5, 0.5, 0.5));
  const DataFigures figures = DescribeData({&group}, options, 5);
  EXPECT_EQ(figures.trained_tokens, 3);
  EXPECT_EQ(figures.response_tokens_max, 3);
}

TEST(OutcomesTest, TurnRewardsStandAtTheWrittenTokenThatEndsTheirTurn) {
  // [written][given given][written written][given][written]: turns end at tokens 1, 5 and 7 of the sample.
  Trajectory sample = Sample(7, 1.5f);
  sample.given = {{1, 3}, {5, 6}};
  sample.turns = {{1, -.5f}, {5, 0}, {7, 2}};
  const TrajectoryGroup group = Group({sample});
  const auto outcomes = GetOutcomes({&group}, LossOptions());
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_THAT((*outcomes)[0][0].early, ElementsAre(EarlyReward{0, -.5}, EarlyReward{3, 2}));
}

TEST(DataFiguresTest, TurnsAndTheirTimeAreOfAnswersThatWerePlayed) {
  TrajectoryGroup group = Group({Sample(4, 1), Sample(4, 1), Sample(2, 1)});
  group.samples[0].turns = {{2, 0, 0.5}, {3, 0, 0.25}, {4, 1, 0.25}};
  group.samples[1].turns = {{4, 1, 2}};
  const DataFigures figures = DescribeData({&group}, LossOptions(), /*step=*/4);
  EXPECT_EQ(figures.turns_mean, 2);
  EXPECT_EQ(figures.environment_seconds_mean, 1.5);
}

TEST(OutcomesTest, ARejectedSampleHasNoLossAndItsRewardIsNotShown) {
  TrajectoryGroup group = Group({Sample(4, 100, {{"math", 9}}), Sample(2, 1, {{"math", 1}})});
  group.samples[0].rejected = true;
  const LossOptions options;
  EXPECT_TRUE(HasNoLoss(group.samples[0], options));
  EXPECT_FALSE(HasNoLoss(group.samples[1], options));
  const auto outcomes = GetOutcomes({&group}, options);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_TRUE((*outcomes)[0][0].rejected);
  EXPECT_EQ((*outcomes)[0][0].tokens, 0);
  EXPECT_FALSE((*outcomes)[0][1].rejected);
  const DataFigures figures = DescribeData({&group}, options, /*step=*/4);
  EXPECT_EQ(figures.rejected_samples, 1);
  EXPECT_EQ(figures.masked_samples, 0);
  EXPECT_EQ(figures.trained_samples, 2);
  EXPECT_EQ(figures.trained_tokens, 2);
  EXPECT_EQ(figures.reward_by_age[1], 1);
  EXPECT_EQ(figures.samples_by_age[1], 1);
  EXPECT_THAT(figures.reward_parts, ElementsAre(Pair("math", 1)));
}

TEST(DataFiguresTest, TokensBeyondTheAgeLimitAreNotTrainedAndTheirAnswersCountInTheGroup) {
  TrajectoryGroup group = Group({Sample(4, 1), Sample(2, 0)});
  group.samples[0].spans = {{{1, 1}, 0, 3}, {{1, 3}, 3, 4}};
  LossOptions options;
  EXPECT_EQ(DescribeData({&group}, options, /*step=*/4).masked_tokens, 0);
  options.max_token_age = 2;
  const DataFigures figures = DescribeData({&group}, options, /*step=*/4);
  EXPECT_EQ(figures.masked_tokens, 3);
  EXPECT_EQ(figures.trained_tokens, 3);
  EXPECT_EQ(figures.response_tokens_mean, 3);
  EXPECT_NEAR(figures.trained_token_ratio, 0.5, 1e-12);
  auto outcomes = GetOutcomes({&group}, options);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  EXPECT_EQ((*outcomes)[0][0].tokens, 4);
  EXPECT_EQ((*outcomes)[0][0].reward, 1);
}

TEST(DataFiguresTest, CountsWhatIsCutOffAndRewardsByAge) {
  TrajectoryGroup group = Group({Sample(4, .5), Sample(2, 1)});
  group.samples[0].finish = FinishReason::kLength;
  group.samples[0].spans = {{{1, 1}, 0, 1}, {{1, 3}, 1, 4}};
  LossOptions options;
  options.overlong = Overlong::kMask;
  group.samples[0].reward_parts = {{"math", 1}, {"format", 0.5f}};
  group.samples[1].reward_parts = {{"math", 0}};
  const DataFigures figures = DescribeData({&group}, options, /*step=*/4);
  EXPECT_THAT(figures.reward_parts, ElementsAre(Pair("format", 0.5), Pair("math", 0.5)));
  EXPECT_EQ(figures.trained_samples, 2);
  // The first answer has tokens of versions 1 and 3, and the second of version 3 alone; both are trained at step 4.
  EXPECT_EQ(figures.in_flight_staleness_mean, 1);
  EXPECT_EQ(figures.in_queue_staleness_mean, 1);
  EXPECT_EQ(figures.mixed_version_ratio, 0.5);
  EXPECT_EQ(figures.truncated_samples, 1);
  EXPECT_EQ(figures.masked_samples, 1);
  EXPECT_EQ(figures.response_tokens_mean, 3);
  EXPECT_NEAR(figures.trained_token_ratio, 1. / 3, 1e-12);
  EXPECT_EQ(figures.response_tokens_min, 2);
  EXPECT_EQ(figures.response_tokens_max, 4);
  EXPECT_EQ(figures.trained_tokens, 2);
  EXPECT_EQ(figures.reward_by_age[3], .5);  // the age of its oldest token
  EXPECT_EQ(figures.reward_by_age[1], 1);
  EXPECT_EQ(figures.samples_by_age[0], 0);
  EXPECT_THAT(GetAges(group.samples[0], 4), ElementsAre(3, 1, 1, 1));
}

}  // namespace
}  // namespace syncopate::loss
