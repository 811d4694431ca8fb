// The effects of a failing reward on a run: reports, the run's end, and the rest of its prompts.

#include "trainer/data/reward_failures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"
#include "tests/unit/trainer/data/group_ledger_fixture.h"
#include "trainer/data/prompt_backoff.h"

namespace syncopate::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Status Failure(const std::string& why = "no such key") {
  return Error(absl::StatusCode::kInternal, reason::kRewardFailed, why);
}

TEST(RewardFailuresTest, TooManyFailuresBeforeAnyGroupWasJudgedEndTheRunAndNameTheLast) {
  RewardFailures rewards(3);
  for (const char* why : {"first", "second"}) rewards.AddFailed(Failure(why));
  EXPECT_TRUE(rewards.verdict().ok());
  rewards.AddFailed(Failure("KeyError: 'x' (mine.py:3 in short)"));
  EXPECT_EQ(ErrorReason(rewards.verdict()), "REWARD_FAILED");
  EXPECT_THAT(std::string(rewards.verdict().message()), ::testing::HasSubstr("KeyError: 'x' (mine.py:3 in short)"));
  EXPECT_EQ(rewards.figures().first, "first");
}

TEST(RewardFailuresTest, OneJudgedGroupLetsTheRunGoOnForEver) {
  RewardFailures rewards(3), never(0);
  rewards.AddFailed(Failure());
  rewards.AddJudged();
  for (int i = 0; i < 100; ++i) rewards.AddFailed(Failure());
  EXPECT_TRUE(rewards.verdict().ok());
  for (int i = 0; i < 100; ++i) never.AddFailed(Failure());
  EXPECT_TRUE(never.verdict().ok());
}

TEST(RewardFailuresTest, TheAlarmStandsWhileHalfOfTheLastGroupsHaveNoReward) {
  RewardFailures rewards(0);
  for (size_t i = 0; i + 1 < RewardFailures::kFewest; ++i) rewards.AddFailed(Failure());
  EXPECT_FALSE(rewards.figures().alarm) << "too few groups for an alarm";
  rewards.AddFailed(Failure());
  EXPECT_TRUE(rewards.figures().alarm);
  EXPECT_FALSE(rewards.all_fail());
  for (size_t i = 0; i < RewardFailures::kRecent; ++i) rewards.AddFailed(Failure());
  EXPECT_TRUE(rewards.all_fail());
  for (size_t i = 0; i < RewardFailures::kRecent / 2; ++i) rewards.AddJudged();
  EXPECT_TRUE(rewards.figures().alarm);
  rewards.AddJudged();
  EXPECT_FALSE(rewards.figures().alarm);
  EXPECT_EQ(rewards.figures().recent_failed, 31);
  EXPECT_EQ(rewards.figures().recent, 64);
}

TEST(RewardFailuresTest, WhatAPeerSaysIsOneLineOfText) {
  RewardFailures rewards(0);
  rewards.AddFailed(Failure(absl::StrCat("a\nb\x1b[2J\xff", std::string(1000, 'x'))));
  const std::string& said = rewards.figures().last;
  EXPECT_TRUE(said.starts_with("a b [2J\xef\xbf\xbd")) << said;
  EXPECT_LT(said.size(), 510u);
}

TEST(PromptBackoffTest, ARestDoublesFromASecondToHalfAMinute) {
  PromptBackoff backoff;
  absl::Time now = absl::UnixEpoch();
  for (const int seconds : {1, 2, 4, 8, 16, 30, 30}) {
    backoff.Add({0, 7});
    EXPECT_THAT(backoff.TakeRested(now), IsEmpty());
    EXPECT_THAT(backoff.TakeRested(now + absl::Seconds(seconds) - absl::Milliseconds(1)), IsEmpty());
    now += absl::Seconds(seconds);
    EXPECT_THAT(backoff.TakeRested(now), ElementsAre(GroupId{0, 7}));
    EXPECT_THAT(backoff.TakeRested(now + absl::Hours(1)), IsEmpty()) << "the prompt no longer rests";
  }
  backoff.Forget({0, 7});
  backoff.Add({0, 7});
  backoff.TakeRested(now);
  EXPECT_THAT(backoff.TakeRested(now + absl::Seconds(1)), SizeIs(1))
      << "a forgotten prompt begins with the shortest rest";
}

class FailingRewardTest : public GroupLedgerTest {
 protected:
  // Gives room for one more group, takes the lease, and makes its reward fail.
  Lease LeaseAndFail(SessionId session) {
    ledger_->OnCredits(session, 1);
    const std::vector<Lease> leases = Leases();
    EXPECT_EQ(leases.size(), 1u);
    if (leases.empty()) return {};
    EXPECT_TRUE(ledger_->Return(session, leases[0].id, Failure()));
    return leases[0];
  }
};

TEST_F(FailingRewardTest, APromptWhoseRewardFailedRestsWhileThoseBehindItGoOut) {
  Start(SmallLedger(4, 4, 4));
  const SessionId only = Join("only", 0);
  EXPECT_EQ(LeaseAndFail(only).id, (LeaseId{{0, 0}, 1}));
  EXPECT_EQ(LeaseAndFail(only).id, (LeaseId{{0, 1}, 1})) << "not the head again";
  EXPECT_EQ(LeaseAndFail(only).id, (LeaseId{{0, 2}, 1}));
  now_ += absl::Milliseconds(999);
  EXPECT_EQ(LeaseAndFail(only).id, (LeaseId{{0, 3}, 1})) << "a second has not passed";
  now_ += absl::Milliseconds(1);
  ledger_->OnCredits(only, 2);
  const std::vector<Lease> leases = Leases();
  EXPECT_THAT(Ordinals(leases), ElementsAre(0, 1)) << "rested";
  EXPECT_EQ(leases[0].id.attempt, 2);
}

TEST_F(FailingRewardTest, CheckpointsKnowNothingOfIt) {
  Start(SmallLedger(4, 4, 4));
  const SessionId only = Join("only", 0);
  LeaseAndFail(only);
  const DataState state = ledger_->Snapshot();
  PromptQueue restored({}, state);
  EXPECT_EQ(restored.Head(), (GroupId{0, 0})) << "a restored trainer leases it at once";
  EXPECT_THAT(state.consumed_above, IsEmpty());
}

TEST_F(FailingRewardTest, DataHaveNotEndedWhileAPromptRests) {
  GroupLedger::Options options = SmallLedger(1, 4, 1);
  options.max_groups = 1;
  Start(options);
  const SessionId only = Join("only", 0);
  LeaseAndFail(only);
  ledger_->OnCredits(only, 1);
  EXPECT_THAT(Leases(), IsEmpty());
  EXPECT_FALSE(ledger_->DataEnded());
  now_ += absl::Seconds(1);
  ledger_->OnCredits(only, 1);
  const std::vector<Lease> leases = Leases();
  ASSERT_THAT(leases, SizeIs(1));
  Finish(only, leases[0]);
  EXPECT_TRUE(ledger_->TakeBatch().has_value());
}

TEST_F(FailingRewardTest, WhileEveryRewardFailsALimitedNumberOfPromptsRestAndNoNewOneGoesOut) {
  Start(SmallLedger(4, 4, 4));
  const SessionId only = Join("only", 0);
  for (int64_t i = 0; i < GroupLedger::kMostResting; ++i) EXPECT_EQ(LeaseAndFail(only).id.group.ordinal, i);
  ledger_->OnCredits(only, 1);
  EXPECT_THAT(Leases(), IsEmpty());
  now_ += absl::Seconds(2);
  EXPECT_EQ(LeaseAndFail(only).id, (LeaseId{{0, 0}, 2}));
  EXPECT_EQ(ledger_->rewards().figures().failed, GroupLedger::kMostResting + 1);
}

TEST_F(FailingRewardTest, ThePoisonedPromptIsGivenUpWithOneRollouterAndTheOthersAreTrained) {
  Start(SmallLedger(1, 4, 4));  // two failures are enough
  const SessionId only = Join("only", 0);
  LeaseAndFail(only);
  ledger_->OnCredits(only, 1);
  const std::vector<Lease> good = Leases();
  ASSERT_THAT(Ordinals(good), ElementsAre(1));
  Finish(only, good[0]);
  now_ += absl::Seconds(2);
  EXPECT_EQ(LeaseAndFail(only).id, (LeaseId{{0, 0}, 2}));
  ASSERT_THAT(ledger_->UnloggedDrops(), SizeIs(1));
  now_ += absl::Hours(1);
  ledger_->OnCredits(only, 1);
  EXPECT_THAT(Ordinals(Leases()), ElementsAre(2)) << "the prompt is never leased again";
}

}  // namespace
}  // namespace syncopate::trainer
