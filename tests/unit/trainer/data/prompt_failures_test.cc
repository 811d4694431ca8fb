#include "trainer/data/prompt_failures.h"

#include <gtest/gtest.h>

namespace syncopate::trainer {
namespace {

constexpr GroupId kPrompt{0, 3};

RolloutSession Session(SessionId id, const std::string& replica, int64_t accepted = 0) {
  RolloutSession session{.id = id, .accepted = accepted};
  session.member.replica_id = replica;
  return session;
}

TEST(PromptFailuresTest, APromptAtWhichTwoHaveFailedIsGivenUpAfterTheMostAttempts) {
  PromptFailures failures(3);
  EXPECT_FALSE(failures.Add(kPrompt, Session(1, "a"), {}));
  EXPECT_FALSE(failures.Add(kPrompt, Session(2, "b"), {}));
  EXPECT_TRUE(failures.Add(kPrompt, Session(1, "a"), {}));
}

TEST(PromptFailuresTest, ARolloutersFailuresAtEverythingAreNotThePrompts) {
  PromptFailures failures(2);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(failures.Add(kPrompt, Session(1, "a", /*accepted=*/5), {}));
}

TEST(PromptFailuresTest, TheOnlyRolloutersFailuresCountOnceItHasAnsweredAnother) {
  PromptFailures failures(2);
  EXPECT_FALSE(failures.Add(kPrompt, Session(1, "a", /*accepted=*/5), {}));
  EXPECT_TRUE(failures.Add(kPrompt, Session(1, "a", /*accepted=*/6), {}));
}

// The answers of the replica before its stream broke were counted in another session.
TEST(PromptFailuresTest, AReplicaThatCameBackIsMeasuredByItsNewSession) {
  PromptFailures failures(2);
  EXPECT_FALSE(failures.Add(kPrompt, Session(1, "a", /*accepted=*/5), {}));
  EXPECT_FALSE(failures.Add(kPrompt, Session(2, "a", /*accepted=*/8), {}));
  EXPECT_TRUE(failures.Add(kPrompt, Session(2, "a", /*accepted=*/9), {}));
}

TEST(PromptFailuresTest, APromptWhoseRewardAloneFailsIsGivenUpWithOneRollouterTooOnceAnyGroupWasJudged) {
  constexpr PromptFailures::Fault kBefore{.is_reward = true}, kAfter{.is_reward = true, .others_were_judged = true};
  PromptFailures failures(3);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(failures.Add(kPrompt, Session(1, "a"), kBefore));
  EXPECT_TRUE(failures.Add(kPrompt, Session(1, "a"), kAfter));
  constexpr GroupId kOther{0, 4};
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(failures.Add(kOther, Session(1, "a"), kAfter));
  EXPECT_TRUE(failures.Add(kOther, Session(1, "a"), kAfter));
}

TEST(PromptFailuresTest, OneOtherFaultLeavesAPromptToTheRuleOfAllFaults) {
  PromptFailures failures(2);
  EXPECT_FALSE(failures.Add(kPrompt, Session(1, "a"), {}));
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(failures.Add(kPrompt, Session(1, "a"), {.is_reward = true, .others_were_judged = true}));
  }
}

TEST(PromptFailuresTest, WhatIsForgottenCountsFromTheStart) {
  PromptFailures failures(2);
  failures.Add(kPrompt, Session(1, "a"), {});
  EXPECT_TRUE(failures.HasFailed(kPrompt, "a"));
  EXPECT_FALSE(failures.HasFailed(kPrompt, "b"));
  EXPECT_FALSE(failures.HasFailed({0, 4}, "a"));
  failures.Forget(kPrompt);
  EXPECT_FALSE(failures.HasFailed(kPrompt, "a"));
  EXPECT_FALSE(failures.Add(kPrompt, Session(2, "b"), {}));
}

}  // namespace
}  // namespace syncopate::trainer
