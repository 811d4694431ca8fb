#include "trainer/data/submission_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "base/status.h"
#include "tests/unit/trainer/data/group_factory.h"

namespace syncopate::trainer {
namespace {

Lease MakeLease() {
  Lease lease;
  lease.id = {{0, 7}, 2};
  lease.version = {3, 10};
  lease.samples = 2;
  lease.prompt_ids = {8, 1, 9};
  lease.sampling.max_new_tokens = 3;
  return lease;
}

const SubmissionRules kRules{.vocab_size = 11, .epoch = 3, .known_steps = {9, 10, 11}};

std::string ReasonAfter(const std::function<void(TrajectoryGroup*)>& spoil) {
  TrajectoryGroup group = AnswerTo(MakeLease());
  spoil(&group);
  return ErrorReason(CheckSubmission(group, MakeLease(), MakeLease().version, kRules));
}

TEST(SubmissionCheckTest, TakesAWholeAnswer) {
  EXPECT_TRUE(CheckSubmission(AnswerTo(MakeLease()), MakeLease(), MakeLease().version, kRules).ok());
}

TEST(SubmissionCheckTest, TakesAnAnswerThatNewWeightsReachedHalfway) {
  TrajectoryGroup group = AnswerTo(MakeLease());
  group.samples[1].spans = {{{3, 10}, 0, 1}, {{3, 11}, 1, 2}};
  EXPECT_TRUE(CheckSubmission(group, MakeLease(), MakeLease().version, kRules).ok());
}

// Tokens 1 to 3 of sample 1 are a tool's answer.
TrajectoryGroup WithGivenTokens() {
  TrajectoryGroup group = AnswerTo(MakeLease());
  Trajectory& sample = group.samples[1];
  sample.tokens = {4, 5, 6, 7, 8};
  sample.logprobs = {-0.5f, 0, 0, -0.5f, -0.5f};
  sample.given = {{1, 3}};
  sample.spans = {{{3, 10}, 0, 1}, {{3, 10}, 3, 4}, {{3, 11}, 4, 5}};
  return group;
}

TEST(SubmissionCheckTest, TokensThatThePolicyDidNotWriteCountForTheContextAlone) {
  const TrajectoryGroup group = WithGivenTokens();  // 3 tokens are written, as many as the lease allows
  EXPECT_TRUE(CheckSubmission(group, MakeLease(), MakeLease().version, kRules).ok());
  SubmissionRules rules = kRules;
  rules.context = 8;
  EXPECT_TRUE(CheckSubmission(group, MakeLease(), MakeLease().version, rules).ok());
  rules.context = 7;
  EXPECT_EQ(ErrorReason(CheckSubmission(group, MakeLease(), MakeLease().version, rules)), "TOO_LONG");
}

TEST(SubmissionCheckTest, AnAnswerOfSeveralTurnsHasALimitOfItsOwn) {
  const TrajectoryGroup group = WithGivenTokens();
  Lease lease = MakeLease();
  lease.sampling.max_new_tokens = 1;  // the limit of one turn
  SubmissionRules rules = kRules;
  rules.max_total_tokens = 5;
  EXPECT_TRUE(CheckSubmission(group, lease, lease.version, rules).ok());
  rules.max_total_tokens = 4;
  EXPECT_EQ(ErrorReason(CheckSubmission(group, lease, lease.version, rules)), "TOO_LONG");
}

TEST(SubmissionCheckTest, RefusesRangesOfGivenTokensThatCannotBe) {
  auto reason = [](const std::function<void(Trajectory*)>& spoil) {
    TrajectoryGroup group = WithGivenTokens();
    spoil(&group.samples[1]);
    return ErrorReason(CheckSubmission(group, MakeLease(), MakeLease().version, kRules));
  };
  EXPECT_EQ(reason([](auto* s) { s->given = {{1, 1}, {1, 3}}; }), "BAD_GIVEN");
  EXPECT_EQ(reason([](auto* s) { s->given = {{2, 3}, {1, 2}}; }), "BAD_GIVEN");
  EXPECT_EQ(reason([](auto* s) { s->given = {{1, 3}, {2, 4}}; }), "BAD_GIVEN");
  EXPECT_EQ(reason([](auto* s) { s->given = {{-1, 1}}; }), "BAD_GIVEN");
  EXPECT_EQ(reason([](auto* s) { s->given = {{1, 5}}; }), "BAD_GIVEN") << "the last token";
  EXPECT_EQ(reason([](auto* s) { s->given = {{1, 9}}; }), "BAD_GIVEN");
  EXPECT_EQ(reason([](auto* s) { s->given.clear(); }), "TOO_LONG") << "then all five are written";
  EXPECT_EQ(reason([](auto* s) { s->logprobs[2] = -0.1f; }), "BAD_LOGPROB");
  EXPECT_EQ(reason([](auto* s) { s->spans[0].end = 2; }), "BAD_SPANS");
  EXPECT_EQ(reason([](auto* s) { s->spans[1].begin = 2; }), "BAD_SPANS");
  EXPECT_EQ(reason([](auto* s) { s->spans = {{{3, 10}, 0, 5}}; }), "BAD_SPANS");
  EXPECT_EQ(reason([](auto* s) { s->spans.pop_back(); }), "BAD_SPANS");
}

TEST(SubmissionCheckTest, RefusesTurnsThatCannotBe) {
  auto reason = [](std::vector<Turn> turns) {
    TrajectoryGroup group = WithGivenTokens();
    group.samples[1].turns = std::move(turns);
    return ErrorReason(CheckSubmission(group, MakeLease(), MakeLease().version, kRules));
  };
  EXPECT_EQ(reason({{1, -0.1f, 0.5}, {5, 1, 0}}), "");
  EXPECT_EQ(reason({{5, 1, 0}}), "");
  EXPECT_EQ(reason({{0, 1, 0}, {5, 1, 0}}), "BAD_TURNS");
  EXPECT_EQ(reason({{1, 1, 0}, {1, 1, 0}, {5, 1, 0}}), "BAD_TURNS");
  EXPECT_EQ(reason({{2, 1, 0}, {5, 1, 0}}), "BAD_TURNS") << "the policy did not write token 1";
  EXPECT_EQ(reason({{1, 1, 0}, {4, 1, 0}}), "BAD_TURNS") << "the last turn is the answer's end";
  EXPECT_EQ(reason({{1, 1, 0}, {6, 1, 0}}), "BAD_TURNS");
  EXPECT_EQ(reason({{1, std::numeric_limits<float>::quiet_NaN(), 0}, {5, 1, 0}}), "BAD_REWARD");
  EXPECT_EQ(reason({{1, 1, -1}, {5, 1, 0}}), "BAD_TIME");
}

TEST(SubmissionCheckTest, RefusesEachDefectWithItsReason) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ReasonAfter([](auto* g) { g->samples.pop_back(); }), "WRONG_SAMPLE_COUNT");
  EXPECT_EQ(ReasonAfter([](auto* g) { g->prompt_ids[1] = 2; }), "WRONG_PROMPT");
  EXPECT_EQ(ReasonAfter([](auto* g) { g->samples[0] = Trajectory(); }), "EMPTY_ANSWER");
  EXPECT_EQ(ReasonAfter([](auto* g) { g->samples[1].finish = FinishReason::kAborted; }), "ABORTED_SAMPLE");
  EXPECT_EQ(ReasonAfter([](auto* g) { g->samples[1].logprobs.pop_back(); }), "LENGTH_MISMATCH");
  EXPECT_EQ(ReasonAfter([](auto* g) { g->samples[1].tokens.assign(4, 0); }), "TOO_LONG");
  EXPECT_EQ(ReasonAfter([](auto* g) { g->samples[1].tokens[0] = 11; }), "BAD_TOKEN");
  EXPECT_EQ(ReasonAfter([](auto* g) { g->samples[1].tokens[0] = -1; }), "BAD_TOKEN");
  for (float logprob : {kNan, kInfinity, -kInfinity, 0.1f, -1.1e30f}) {
    EXPECT_EQ(ReasonAfter([&](auto* g) { g->samples[1].logprobs[0] = logprob; }), "BAD_LOGPROB");
  }
  for (float reward : {kNan, kInfinity, 1.1e30f, -1.1e30f}) {
    EXPECT_EQ(ReasonAfter([&](auto* g) { g->samples[1].reward = reward; }), "BAD_REWARD");
  }
  for (double seconds : {-1.0, static_cast<double>(kNan), static_cast<double>(kInfinity)}) {
    EXPECT_EQ(ReasonAfter([&](auto* g) { g->samples[1].generate_seconds = seconds; }), "BAD_TIME");
  }
}

TEST(SubmissionCheckTest, TakesWhatIsAtTheBounds) {
  EXPECT_EQ(ReasonAfter([](auto* g) {
              g->samples[0].reward = 1e30f;
              g->samples[1].reward = -1e30f;
              g->samples[1].logprobs[0] = -1e30f;
              g->samples[1].generate_seconds = 1e6;
            }),
            "");
}

TEST(SubmissionCheckTest, ALeaseIsAnsweredAsWhatItIs) {
  EXPECT_EQ(ReasonAfter([](auto* g) { g->kind = LeaseKind::kEvaluation; }), "WRONG_KIND");
  Lease evaluation = MakeLease();
  evaluation.kind = LeaseKind::kEvaluation;
  TrajectoryGroup group = AnswerTo(evaluation);
  EXPECT_TRUE(CheckSubmission(group, evaluation, evaluation.version, kRules).ok());
  group.kind = LeaseKind::kTraining;
  EXPECT_EQ(ErrorReason(CheckSubmission(group, evaluation, evaluation.version, kRules)), "WRONG_KIND");
}

TEST(SubmissionCheckTest, RewardPartsAreFiniteAndTheSameInAllSamples) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  auto with = [](std::vector<RewardPart> first, std::vector<RewardPart> second) {
    return ReasonAfter([&](auto* g) {
      for (Trajectory& sample : g->samples) sample.reward_parts = first;
      g->samples[1].reward_parts = second;
    });
  };
  EXPECT_EQ(with({{"answer", 1}, {"format", 0}}, {{"answer", 0}, {"format", 1}}), "");
  EXPECT_EQ(with({{"answer", 1}}, {}), "BAD_REWARD_PARTS");
  EXPECT_EQ(with({{"answer", 1}}, {{"format", 1}}), "BAD_REWARD_PARTS");
  for (float value : {kNan, 1.1e30f, -1.1e30f}) {
    EXPECT_EQ(with({{"answer", 1}}, {{"answer", value}}), "BAD_REWARD_PARTS");
  }
  EXPECT_EQ(with({{"", 1}}, {{"", 1}}), "BAD_REWARD_PARTS");
  const std::vector<RewardPart> many(33, {"part", 0});
  EXPECT_EQ(with(many, many), "BAD_REWARD_PARTS");
}

TEST(SubmissionCheckTest, SpansCoverAllTokensInOrderAndNeverGoBack) {
  auto with = [](std::vector<VersionSpan> spans) { return ReasonAfter([&](auto* g) { g->samples[0].spans = spans; }); };
  EXPECT_EQ(with({}), "BAD_SPANS");
  EXPECT_EQ(with({{{3, 10}, 0, 1}}), "BAD_SPANS");
  EXPECT_EQ(with({{{3, 10}, 0, 3}}), "BAD_SPANS");
  EXPECT_EQ(with({{{3, 10}, 0, 1}, {{3, 10}, 0, 2}}), "BAD_SPANS");
  EXPECT_EQ(with({{{3, 10}, 0, 0}, {{3, 10}, 0, 2}}), "BAD_SPANS");
  EXPECT_EQ(with({{{3, 11}, 0, 1}, {{3, 10}, 1, 2}}), "VERSION_BEFORE_LEASE");
  EXPECT_EQ(with({{{3, 9}, 0, 2}}), "VERSION_BEFORE_LEASE")
      << "older than the version for which the gate admitted the lease";
  EXPECT_EQ(with({{{3, 12}, 0, 2}}), "UNKNOWN_VERSION");
  EXPECT_EQ(with({{{4, 10}, 0, 2}}), "UNKNOWN_VERSION");
  EXPECT_EQ(with({{{2, 10}, 0, 2}}), "FENCED");
}

}  // namespace
}  // namespace syncopate::trainer
