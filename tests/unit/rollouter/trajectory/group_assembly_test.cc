#include "rollouter/trajectory/group_assembly.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>

namespace syncopate::rollouter {
namespace {

Lease MakeLease(int32_t samples, LeaseKind kind = LeaseKind::kTraining) {
  Lease lease;
  lease.id = {{1, 7}, 2};
  lease.kind = kind;
  lease.version = {1, 5};
  lease.samples = samples;
  lease.prompt_ids = {8, 1, 2, 9};
  lease.answer_ids = {2, 1, 10};
  lease.seed = 77;
  return lease;
}

Trajectory Answer(std::vector<int32_t> tokens, FinishReason finish = FinishReason::kStop, int64_t step = 5) {
  Trajectory trajectory;
  trajectory.logprobs.assign(tokens.size(), -0.5f);
  trajectory.spans = {{{1, step}, 0, static_cast<int32_t>(tokens.size())}};
  trajectory.tokens = std::move(tokens);
  trajectory.finish = finish;
  return trajectory;
}

class GroupAssemblyTest : public ::testing::Test {
 protected:
  std::unique_ptr<GroupAssembly> Assemble(const Lease& lease) {
    MemberId member;
    member.replica_id = "rollouter-3";
    member.incarnation = "abc";
    auto done = [this](absl::StatusOr<TrajectoryGroup> group) {
      EXPECT_FALSE(result_.has_value()) << "told twice";
      result_ = std::move(group);
    };
    return std::make_unique<GroupAssembly>(lease, member, done, made_, &stops_);
  }

  std::optional<absl::StatusOr<TrajectoryGroup>> result_;
  StopRules stops_;
  std::shared_ptr<TokenCount> made_ = std::make_shared<TokenCount>(0);
};

TEST_F(GroupAssemblyTest, CountsTheTokensOfAllSamples) {
  auto assembly = Assemble(MakeLease(2));
  for (int32_t sample : {0, 1, 1}) assembly->OnToken(sample, 3, -0.5f, {1, 1}, {});
  EXPECT_EQ(made_->load(), 3);
}

TEST_F(GroupAssemblyTest, EndsASampleWithTheTokenThatCompletesAStop) {
  stops_.token_ids = {4};
  auto assembly = Assemble(MakeLease(2));
  EXPECT_TRUE(assembly->OnToken(0, 3, -0.5f, {1, 1}, {}));
  EXPECT_FALSE(assembly->OnToken(1, 4, -0.5f, {1, 1}, {}));
  EXPECT_TRUE(assembly->OnToken(0, 5, -0.5f, {1, 1}, {})) << "the other sample goes on";
  EXPECT_EQ(made_->load(), 3);
}

TEST_F(GroupAssemblyTest, GivesTheGroupAwayWithTheLastSampleInSampleOrder) {
  auto assembly = Assemble(MakeLease(3));
  assembly->OnFinished(2, Answer({2, 1, 10}));
  assembly->OnFinished(0, Answer({2, 9, 9}));
  EXPECT_FALSE(result_.has_value());
  assembly->OnFinished(1, Answer({10}));
  ASSERT_TRUE(result_.has_value() && result_->ok());
  const TrajectoryGroup& group = **result_;
  EXPECT_EQ(group.lease, (LeaseId{{1, 7}, 2}));
  EXPECT_EQ(group.rollouter, "rollouter-3");
  EXPECT_EQ(group.incarnation, "abc");
  EXPECT_EQ(group.prompt_ids, (std::vector<int32_t>{8, 1, 2, 9}));
  ASSERT_EQ(group.samples.size(), 3u);
  EXPECT_EQ(group.samples[0].tokens, (std::vector<int32_t>{2, 9, 9}));
  EXPECT_EQ(group.samples[1].tokens, (std::vector<int32_t>{10}));
  EXPECT_EQ(group.samples[2].tokens, (std::vector<int32_t>{2, 1, 10}));
}

TEST_F(GroupAssemblyTest, GivesNoPartOfAGroupAwayWhenASampleWasAborted) {
  auto assembly = Assemble(MakeLease(2));
  assembly->OnFinished(0, Answer({2, 1, 10}));
  assembly->OnFinished(1, Answer({2}, FinishReason::kAborted));
  ASSERT_TRUE(result_.has_value());
  EXPECT_EQ(ErrorReason(result_->status()), "GROUP_ABORTED");
}

TEST_F(GroupAssemblyTest, RefusesEvaluationTokensOfAnotherVersionAndTrainingTakesThem) {
  auto evaluation = Assemble(MakeLease(1, LeaseKind::kEvaluation));
  evaluation->OnFinished(0, Answer({2, 1, 10}, FinishReason::kStop, 6));
  ASSERT_TRUE(result_.has_value());
  EXPECT_EQ(ErrorReason(result_->status()), "WRONG_VERSION");
  result_.reset();
  auto training = Assemble(MakeLease(1));
  training->OnFinished(0, Answer({2, 1, 10}, FinishReason::kStop, 6));
  EXPECT_TRUE(result_->ok());
}

TEST_F(GroupAssemblyTest, RefusesLogProbabilitiesThatNoModelGives) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), -1.1e30f, 0.5f}) {
    auto assembly = Assemble(MakeLease(2));
    Trajectory overflown = Answer({2, 1, 10});
    overflown.logprobs[1] = bad;
    assembly->OnFinished(0, Answer({2, 1, 10}));
    assembly->OnFinished(1, std::move(overflown));
    ASSERT_TRUE(result_.has_value());
    EXPECT_EQ(ErrorReason(result_->status()), "BAD_LOGPROB") << bad;
    result_.reset();
  }
}

TEST(RequestForTest, DrawsEachSampleWithItsOwnSeedOnAnyRollouter) {
  GenerationRequest first = RequestFor(MakeLease(3), "a");
  Lease again = MakeLease(3);
  again.id.attempt = 9;
  GenerationRequest second = RequestFor(again, "b");
  EXPECT_EQ(first.seeds, second.seeds);
  EXPECT_EQ(first.seeds.size(), 3u);
  EXPECT_NE(first.seeds[0], first.seeds[1]);
  EXPECT_EQ(first.seeds[2], SampleSeed(77, 2));
  EXPECT_FALSE(first.holds_install);
  EXPECT_TRUE(RequestFor(MakeLease(1, LeaseKind::kEvaluation), "c").holds_install);
}

}  // namespace
}  // namespace syncopate::rollouter
