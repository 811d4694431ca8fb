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
      EXPECT_FALSE(result_.has_value()) << "reported twice";
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

// Sample 0 begins anew, sample 1 is finished, sample 2 has two tokens.
Lease MakeContinuedLease() {
  Lease lease = MakeLease(3);
  lease.starts = {{}, {{2, 1, 10}, FinishReason::kLength}, {{2, 3}}};
  return lease;
}

TEST_F(GroupAssemblyTest, ContinuesAndKeepsWhatEarlierLeasesHaveMade) {
  const Lease lease = MakeContinuedLease();
  const GenerationRequest request = RequestFor(lease, "a");
  EXPECT_EQ(request.seeds, (std::vector<uint64_t>{SampleSeed(77, 0), SampleSeed(77, 2)}));
  EXPECT_EQ(request.starts, (std::vector<std::vector<int32_t>>{{}, {2, 3}}));
  auto assembly = Assemble(lease);
  EXPECT_FALSE(assembly->DeliverIfFinished());
  Trajectory rest = Answer({2, 3, 4});
  rest.given = {{0, 2}};
  rest.spans = {{{1, 5}, 2, 3}};
  assembly->OnFinished(1, rest);
  assembly->OnFinished(0, Answer({9}));
  ASSERT_TRUE(result_.has_value() && result_->ok());
  TrajectoryGroup group = **result_;
  EXPECT_EQ(group.samples[1].tokens, (std::vector<int32_t>{2, 1, 10})) << "rewards see whole answers";
  EXPECT_EQ(group.samples[1].finish, FinishReason::kLength);
  EXPECT_EQ(group.samples[2].tokens, (std::vector<int32_t>{2, 3, 4}));
  EXPECT_TRUE(group.samples[2].given.empty());
  TakeOffStarts(lease, &group);
  EXPECT_EQ(group.samples[0].tokens, (std::vector<int32_t>{9}));
  EXPECT_TRUE(group.samples[1].tokens.empty());
  EXPECT_EQ(group.samples[2].tokens, (std::vector<int32_t>{4}));
  EXPECT_EQ(group.samples[2].logprobs.size(), 1u);
  EXPECT_EQ(group.samples[2].spans, rest.spans) << "places are those in the whole answer";
}

TEST_F(GroupAssemblyTest, DeliversAtOnceWhatIsOnlyToBeScored) {
  Lease lease = MakeLease(1);
  lease.starts = {{{2, 1, 10}, FinishReason::kStop}};
  auto assembly = Assemble(lease);
  EXPECT_TRUE(RequestFor(lease, "a").seeds.empty());
  EXPECT_TRUE(assembly->DeliverIfFinished());
  ASSERT_TRUE(result_.has_value() && result_->ok());
}

TEST(AnswerReportsTest, TakesWhatIsNewAndNeverTheTokenThatMayEndTheSample) {
  AnswerReports reports({0, 10});
  for (int32_t token = 0; token < 4; ++token) reports.OnToken(0, token, -1.0f, {1, token < 2 ? 5 : 6});
  EXPECT_TRUE(reports.Take(4).empty());
  std::vector<AnswerPart> parts = reports.Take(3);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].tokens, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(parts[0].spans, (std::vector<VersionSpan>{{{1, 5}, 0, 2}, {{1, 6}, 2, 3}}));
  EXPECT_FALSE(parts[0].finish.has_value());
  reports.OnToken(1, 7, -2.0f, {1, 6});
  reports.OnFinished(0, FinishReason::kStop);
  reports.OnFinished(1, FinishReason::kAborted);
  parts = reports.Take(3);
  ASSERT_EQ(parts.size(), 1u) << "an aborted sample may be continued";
  EXPECT_EQ(parts[0].begin, 3);
  EXPECT_EQ(parts[0].tokens, (std::vector<int32_t>{3}));
  EXPECT_EQ(parts[0].finish, FinishReason::kStop);
  reports.OnToken(1, 8, -2.0f, {1, 6});
  parts = reports.Take(1);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].begin, 10);
  EXPECT_EQ(parts[0].tokens, (std::vector<int32_t>{7}));
  EXPECT_TRUE(reports.Take(1).empty());
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
