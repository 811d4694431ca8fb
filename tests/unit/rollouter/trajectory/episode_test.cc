#include "rollouter/trajectory/episode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/status.h"

namespace syncopate::rollouter {
namespace {

using Kind = Episode::Action::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kSeed = 77;

Episode::Options Roomy() { return {.max_turns = 4, .max_total_tokens = 100, .max_given_tokens = 10}; }

EnvironmentAnswer Say(std::vector<int32_t> content, std::optional<float> reward = std::nullopt) {
  return {.opening = {1}, .content = std::move(content), .closing = {2}, .reward = reward};
}

std::vector<Kind> Kinds(const Episode::Actions& actions) {
  std::vector<Kind> kinds;
  for (const Episode::Action& action : actions) kinds.push_back(action.kind);
  return kinds;
}

// Plays until the policy writes its first turn.
void Begin(Episode& episode, const EnvironmentAnswer& answer = {}) {
  EXPECT_THAT(Kinds(episode.Start()), ElementsAre(Kind::kReset));
  EXPECT_THAT(Kinds(episode.OnAnswered(1, answer)), ElementsAre(Kind::kBegin));
}

TEST(EpisodeTest, ResetTurnsAndRewardsHaveTheirPlaces) {
  Episode episode(Roomy(), kSeed);
  Episode::Actions actions = episode.Start();
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(actions[0].seed, kSeed);
  actions = episode.OnAnswered(actions[0].call, Say({5}));
  ASSERT_THAT(Kinds(actions), ElementsAre(Kind::kBegin));
  EXPECT_THAT(actions[0].tokens, ElementsAre(1, 5, 2));
  actions = episode.OnTurnEnded({10, 11}, FinishReason::kStop);
  ASSERT_THAT(Kinds(actions), ElementsAre(Kind::kStep));
  EXPECT_THAT(actions[0].tokens, ElementsAre(10, 11));
  actions = episode.OnAnswered(actions[0].call, Say({6, 7}, 0.5f));
  ASSERT_THAT(Kinds(actions), ElementsAre(Kind::kExtend));
  EXPECT_THAT(actions[0].tokens, ElementsAre(1, 6, 7, 2));
  actions = episode.OnTurnEnded({12}, FinishReason::kLength);
  EXPECT_EQ(actions[0].finish, FinishReason::kLength);
  actions = episode.OnAnswered(actions[0].call, {.reward = 2.0f, .done = true, .seconds = 0.25});
  EXPECT_THAT(Kinds(actions), ElementsAre(Kind::kFinish));
  EXPECT_EQ(episode.phase(), Episode::Phase::kFinished);
  const Episode::Result& result = episode.result();
  EXPECT_EQ(result.reward, 2.5f);
  EXPECT_THAT(result.answered, ElementsAre(Turn{5, 0.5f}, Turn{10, 2.0f, 0.25}));
  EXPECT_THAT(result.given, ElementsAre(TokenRange{0, 3}, TokenRange{5, 9}));
  EXPECT_EQ(result.turns, 2);
  EXPECT_FALSE(result.at_limit || result.rejected || episode.has_open_calls());
}

TEST(EpisodeTest, TheLastTurnIsAnsweredTooAndEndsAtALimit) {
  Episode::Options options = Roomy();
  options.max_turns = 1;
  Episode episode(options, kSeed);
  Begin(episode);
  EXPECT_THAT(Kinds(episode.OnTurnEnded({3}, FinishReason::kStop)), ElementsAre(Kind::kStep));
  EXPECT_THAT(Kinds(episode.OnAnswered(2, Say({4}, 1.0f))), ElementsAre(Kind::kFinish));
  EXPECT_TRUE(episode.result().at_limit);
  EXPECT_EQ(episode.result().reward, 1.0f);

  options = Roomy();
  options.max_total_tokens = 6;
  Episode full(options, kSeed);
  Begin(full);
  full.OnTurnEnded({3, 3}, FinishReason::kStop);
  EXPECT_THAT(Kinds(full.OnAnswered(2, Say({4, 4}))), ElementsAre(Kind::kFinish)) << "no room for 4 and one more";
  EXPECT_TRUE(full.result().at_limit);
}

TEST(EpisodeTest, WhatAnEnvironmentSaysIsCutAtItsEndOrItsBeginning) {
  for (bool keep_tail : {false, true}) {
    Episode::Options options = Roomy();
    options.max_given_tokens = 2;
    options.keep_tail = keep_tail;
    Episode episode(options, kSeed);
    episode.Start();
    const Episode::Actions actions = episode.OnAnswered(1, Say({5, 6, 7, 8}));
    if (keep_tail) {
      EXPECT_THAT(actions[0].tokens, ElementsAre(1, 7, 8, 2));
    } else {
      EXPECT_THAT(actions[0].tokens, ElementsAre(1, 5, 6, 2));
    }
  }
}

TEST(EpisodeTest, AnErrorIsPlayedAnewWithTheSameSeedAndOneThatStaysHandsTheLeaseBack) {
  Episode episode(Roomy(), kSeed);
  Begin(episode);
  episode.OnTurnEnded({3}, FinishReason::kStop);
  episode.OnAnswered(2, Say({4}, 1.0f));
  episode.OnTurnEnded({3}, FinishReason::kStop);
  Episode::Actions actions = episode.OnFailed(3, absl::InternalError("broken"));
  ASSERT_THAT(Kinds(actions), ElementsAre(Kind::kRewind, Kind::kReset));
  EXPECT_EQ(actions[1].seed, kSeed);
  for (int retry = 2; retry <= 3; ++retry) {
    actions = episode.OnFailed(actions.back().call, absl::InternalError("broken"));
    ASSERT_THAT(Kinds(actions), ElementsAre(Kind::kReset)) << "there is nothing to rewind";
  }
  actions = episode.OnFailed(actions.back().call, absl::InternalError("broken"));
  ASSERT_THAT(Kinds(actions), ElementsAre(Kind::kHandBack));
  EXPECT_EQ(ErrorReason(actions[0].why), "ENVIRONMENT_FAILED");
  EXPECT_EQ(episode.phase(), Episode::Phase::kHandedBack);
  EXPECT_EQ(episode.counters().failures, 4);
  EXPECT_EQ(episode.counters().retries, 3);
}

TEST(EpisodeTest, APlayAnewKeepsNothingOfTheOneBefore) {
  Episode episode(Roomy(), kSeed);
  Begin(episode, Say({9}));
  episode.OnTurnEnded({3}, FinishReason::kStop);
  episode.OnAnswered(2, Say({4}, 1.0f));
  episode.OnTurnEnded({3}, FinishReason::kStop);
  episode.OnFailed(3, absl::InternalError("broken"));
  EXPECT_THAT(Kinds(episode.OnAnswered(4, {})), ElementsAre(Kind::kBegin));
  episode.OnTurnEnded({3, 4}, FinishReason::kStop);
  episode.OnAnswered(5, {.reward = 3.0f, .done = true});
  EXPECT_EQ(episode.result().reward, 3.0f);
  EXPECT_THAT(episode.result().answered, ElementsAre(Turn{2, 3.0f}));
  EXPECT_THAT(episode.result().given, IsEmpty());
  EXPECT_EQ(episode.result().turns, 1);
}

TEST(EpisodeTest, ACallBeyondItsBudgetIsCancelledAndItsLateAnswerIgnored) {
  Episode episode(Roomy(), kSeed);
  Begin(episode);
  episode.OnTurnEnded({3}, FinishReason::kStop);
  const Episode::Actions actions = episode.OnTimedOut(2);
  ASSERT_THAT(Kinds(actions), ElementsAre(Kind::kCancelCall, Kind::kRewind, Kind::kReset));
  EXPECT_EQ(actions[0].call, 2);
  EXPECT_THAT(episode.OnAnswered(2, Say({4}, 1.0f)), IsEmpty());
  EXPECT_EQ(episode.counters().ignored, 1);
  EXPECT_EQ(episode.phase(), Episode::Phase::kResetting);
}

TEST(EpisodeTest, ATurnAnsweredTwiceGoesOnOnce) {
  Episode episode(Roomy(), kSeed);
  Begin(episode);
  episode.OnTurnEnded({3}, FinishReason::kStop);
  EXPECT_THAT(episode.OnAnswered(2, Say({4}, 1.0f)), SizeIs(1));
  EXPECT_THAT(episode.OnAnswered(2, Say({4}, 1.0f)), IsEmpty());
  episode.OnTurnEnded({3}, FinishReason::kStop);
  EXPECT_THAT(episode.OnAnswered(2, Say({4}, 1.0f)), IsEmpty());
  EXPECT_THAT(episode.OnAnswered(3, {.done = true}), SizeIs(1));
  EXPECT_EQ(episode.result().reward, 1.0f);
}

TEST(EpisodeTest, CancelReachesTheEnvironmentAndIsAwaited) {
  Episode episode(Roomy(), kSeed);
  Begin(episode);
  episode.OnTurnEnded({3}, FinishReason::kStop);
  const Episode::Actions actions = episode.Cancel();
  ASSERT_THAT(Kinds(actions), ElementsAre(Kind::kCancelCall, Kind::kAbort));
  EXPECT_TRUE(episode.is_over());
  EXPECT_TRUE(episode.has_open_calls());
  EXPECT_THAT(episode.Cancel(), IsEmpty());
  EXPECT_THAT(episode.OnCancelled(2), IsEmpty());
  EXPECT_FALSE(episode.has_open_calls());
  EXPECT_THAT(episode.OnTurnEnded({3}, FinishReason::kStop), IsEmpty());
}

TEST(EpisodeTest, DrainHandsTheLeaseBackAndCancelsTheCall) {
  Episode episode(Roomy(), kSeed);
  episode.Start();
  const Episode::Actions actions = episode.Drain(absl::UnavailableError("leaving"));
  EXPECT_THAT(Kinds(actions), ElementsAre(Kind::kCancelCall, Kind::kHandBack));
  EXPECT_EQ(actions[1].why.message(), "leaving");
  EXPECT_THAT(episode.OnAnswered(1, Say({4})), IsEmpty());
}

TEST(EpisodeTest, AnEnvironmentLostWhileThePolicyWritesIsPlayedAnewAtTheTurnsEnd) {
  Episode episode(Roomy(), kSeed);
  Begin(episode);
  EXPECT_THAT(episode.OnLost(absl::UnavailableError("died")), IsEmpty());
  EXPECT_THAT(Kinds(episode.OnTurnEnded({3}, FinishReason::kStop)), ElementsAre(Kind::kRewind, Kind::kReset));
}

TEST(EpisodeTest, AnswersThatMakeNoSenseAreErrors) {
  for (float reward : {std::nanf(""), INFINITY, -2e30f}) {
    Episode episode(Roomy(), kSeed);
    Begin(episode);
    episode.OnTurnEnded({3}, FinishReason::kStop);
    EXPECT_THAT(Kinds(episode.OnAnswered(2, Say({4}, reward))), ElementsAre(Kind::kRewind, Kind::kReset));
  }
  Episode silent(Roomy(), kSeed);
  Begin(silent);
  silent.OnTurnEnded({3}, FinishReason::kStop);
  EXPECT_THAT(Kinds(silent.OnAnswered(2, {})), ElementsAre(Kind::kRewind, Kind::kReset));
  Episode over(Roomy(), kSeed);
  over.Start();
  EXPECT_THAT(Kinds(over.OnAnswered(1, {.done = true})), ElementsAre(Kind::kReset));
}

TEST(EpisodeTest, ARejectedSampleEnds) {
  Episode episode(Roomy(), kSeed);
  Begin(episode);
  episode.OnTurnEnded({3}, FinishReason::kStop);
  EXPECT_THAT(Kinds(episode.OnAnswered(2, {.rejected = true})), ElementsAre(Kind::kFinish));
  EXPECT_TRUE(episode.result().rejected);
}

TEST(EpisodeTest, AResetThatLeavesNoRoomHandsTheLeaseBack) {
  Episode::Options options = Roomy();
  options.max_total_tokens = 3;
  Episode episode(options, kSeed);
  episode.Start();
  const Episode::Actions actions = episode.OnAnswered(1, Say({4}));
  ASSERT_THAT(Kinds(actions), ElementsAre(Kind::kHandBack));
  EXPECT_EQ(ErrorReason(actions[0].why), "ENVIRONMENT_FAILED");
}

TEST(EpisodeTest, OptionsMustBePositive) {
  EXPECT_TRUE(Roomy().Validate().ok());
  for (auto spoil :
       {+[](Episode::Options& o) { o.max_turns = 0; }, +[](Episode::Options& o) { o.max_total_tokens = 0; },
        +[](Episode::Options& o) { o.max_given_tokens = 0; }, +[](Episode::Options& o) { o.max_retries = -1; }}) {
    Episode::Options options = Roomy();
    spoil(options);
    EXPECT_EQ(ErrorReason(options.Validate()), "BAD_OPTIONS");
  }
}

}  // namespace
}  // namespace syncopate::rollouter
