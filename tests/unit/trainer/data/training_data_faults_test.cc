#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/data/training_data_rollouter.h"

// Rollouters that answer wrongly, hand back every lease, or make no progress.
namespace syncopate::trainer {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using Result = GroupLedger::Result;

TEST_F(TrainingDataTest, ARollouterWhoseAnswersAreAllInvalidGetsNoMoreLeasesAndItIsSaidWhy) {
  Open();
  for (int64_t i = 1; i <= RolloutSessions::kInvalidInRow; ++i) {
    data_->SetCredits(session_, 1);
    ASSERT_TRUE(sink_->leases.WaitFor(static_cast<size_t>(i)));
    TrajectoryGroup group = RightAnswer(sink_->leases.All().back());
    group.samples[1].logprobs[0] = std::nanf("");
    data_->Submit(session_, std::move(group));
    ASSERT_TRUE(sink_->acks.WaitFor(static_cast<size_t>(i)));
    EXPECT_EQ(sink_->acks.All().back().result, Result::kInvalid);
    EXPECT_THAT(sink_->acks.All().back().error, HasReason("BAD_LOGPROB"));
  }
  data_->SetCredits(session_, 1);
  EXPECT_EQ(sink_->leases.size(), static_cast<size_t>(RolloutSessions::kInvalidInRow));
  const TrainingData::Status status = data_->GetStatus();
  EXPECT_EQ(status.leases.invalid.at("BAD_LOGPROB"), RolloutSessions::kInvalidInRow);
  EXPECT_EQ(status.groups.failed_attempts, RolloutSessions::kInvalidInRow);
  EXPECT_EQ(status.leases.quarantines, 1);
  ASSERT_EQ(status.rollouters.size(), 1u);
  EXPECT_GT(status.rollouters[0].quarantine_seconds, 0);
  EXPECT_THAT(status.rollouters[0].last_fault, ::testing::HasSubstr("sample 1"));

  auto other = std::make_shared<RecordingSink>();
  const SessionId good = *data_->Connect(TrainingDataWorld::Member("r1", "i2"), "run-1", other);
  data_->SetServing(good, {1, 0});
  data_->SetCredits(good, 1);
  EXPECT_EQ(other->leases.size(), 1u);
}

TEST_F(TrainingDataTest, ARewardThatFailsForEverythingIsExplainedWithTheLastReasonAndEndsTheRunEvaluationsCounted) {
  world_.options.ledger.max_reward_failures = 20;
  Open();
  data_->StartEvaluation({1, 0});
  for (size_t i = 1; i <= 20; ++i) {
    EXPECT_THAT(data_->GetStatus().reward_verdict, IsOk());
    if (sink_->leases.size() < i) data_->SetCredits(session_, 1);
    ASSERT_TRUE(sink_->leases.WaitFor(i));
    data_->ReturnLease(session_, sink_->leases.All()[i - 1].id,
                       Error(absl::StatusCode::kInternal, "REWARD_FAILED", absl::StrCat("failure ", i)));
  }
  const TrainingData::Status status = data_->GetStatus();
  EXPECT_THAT(status.reward_verdict, HasReason("REWARD_FAILED"));
  EXPECT_EQ(status.rewards.failed, 20);
  EXPECT_GT(status.rewards.failed, status.groups.failed_attempts) << "some were of the evaluation";
  EXPECT_EQ(status.explanation.waiting_for, "rewards");
  EXPECT_EQ(status.explanation.detail, "20 of the last 20 groups got no reward, the last: failure 20");
}

TEST_F(TrainingDataTest, WhatIsNobodysFaultIsNoFailureOfARewardAndARollouterWithoutRewardsIsNamed) {
  Open();
  data_->SetCredits(session_, 1);
  ASSERT_TRUE(sink_->leases.WaitFor(1));
  data_->ReturnLease(session_, sink_->leases.All()[0].id, absl::UnavailableError("SCORER_AWAY"));
  data_->SetCredits(session_, 0, "the worker has other code");
  TrainingData::Status status = data_->GetStatus();
  EXPECT_EQ(status.rewards.failed, 0);
  EXPECT_EQ(status.explanation.waiting_for, "rewards");
  EXPECT_EQ(status.explanation.detail, "r0 asks for no work: the worker has other code");
  EXPECT_EQ(status.rollouters.at(0).no_rewards, "the worker has other code");
  data_->SetCredits(session_, 0);
  status = data_->GetStatus();
  EXPECT_EQ(status.explanation.waiting_for, "groups");
  EXPECT_EQ(status.rollouters.at(0).no_rewards, "");
}

TEST_F(TrainingDataTest, AfterItsIntakeIsClosedItAcceptsNothingAndCountsWhatTheLogHolds) {
  Open();
  Answer(2);
  data_->SetCredits(session_, 1);
  ASSERT_TRUE(sink_->leases.WaitFor(3));
  data_->CloseIntake();
  data_->Submit(session_, RightAnswer(sink_->leases.All()[2]));
  ASSERT_TRUE(sink_->acks.WaitFor(3));
  EXPECT_EQ(sink_->acks.All()[2].result, Result::kExpired);
  data_->SetCredits(session_, 8);
  EXPECT_EQ(sink_->leases.size(), 3u);
  EXPECT_EQ(data_->GetStatus().sums.accepted, 2);
  CrashAndOpen({1, 0});
  EXPECT_EQ(data_->GetStatus().sums.accepted, 2);
}

TEST_F(TrainingDataTest, APromptThatIsGivenUpIsCountedOnceHoweverOftenTheTrainerIsStartedAgain) {
  world_.options.ledger.max_failures = 1;
  Open();
  Answer(1);
  data_->SetCredits(session_, 1);
  ASSERT_TRUE(sink_->leases.WaitFor(2));
  data_->ReturnLease(session_, sink_->leases.All()[1].id, Error(absl::StatusCode::kInternal, "REWARD_FAILED", "no"));
  Answer(1);  // records appended after the drop become durable after it
  EXPECT_EQ(data_->GetStatus().sums.failed, 1);
  EXPECT_EQ(data_->GetStatus().groups.failed_attempts, 1);
  const auto snapshot = data_->Snapshot();
  ASSERT_THAT(snapshot, IsOk());
  CrashAndOpen({1, 0}, snapshot->bytes);
  EXPECT_EQ(data_->GetStatus().sums.failed, 1);
  EXPECT_EQ(data_->GetStatus().sums.accepted, 2);
}

class StalledRollouterTest : public TrainingDataTest {
 protected:
  void Start() {
    world_.clock = &clock_;
    world_.options.ledger.lease_limits = {.stall = absl::Seconds(30), .timeout = absl::Minutes(10)};
    Open();
    other_ = std::make_shared<RecordingSink>();
    good_ = *data_->Connect(TrainingDataWorld::Member("r1", "i2"), TrainingDataWorld::kRunId, other_);
    data_->SetServing(good_, {1, 0});
  }
  ~StalledRollouterTest() override { data_.reset(); }  // destroyed before the clock

  // Both rollouters send a heartbeat each second, and the good one reports the progress of its leases.
  void Heartbeats(int seconds, const std::vector<LeaseId>& further = {}) {
    for (int i = 0; i < seconds; ++i) {
      clock_.Advance(absl::Seconds(1));
      data_->RecordProgress(good_, further);
      data_->SetServing(session_, {1, 0});
    }
  }

  std::vector<LeaseId> HeldByOther() {
    std::vector<LeaseId> held;
    for (const Lease& lease : other_->leases.All()) held.push_back(lease.id);
    return held;
  }

  HandClock clock_;
  std::shared_ptr<RecordingSink> other_;
  SessionId good_ = 0;
};

TEST_F(StalledRollouterTest, LosesItsLeasesThoughNobodyWaitsForABatchAndGetsNoneUntilItLetsGo) {
  Start();
  data_->SetCredits(session_, 1);
  ASSERT_TRUE(sink_->leases.WaitFor(1));
  const LeaseId stuck = sink_->leases.All()[0].id;
  data_->SetCredits(good_, 8);
  data_->SetCredits(good_, 8);
  const std::vector<LeaseId> held = HeldByOther();
  const size_t before = held.size();
  Heartbeats(29, held);
  EXPECT_EQ(sink_->revoked.size(), 0u);
  EXPECT_EQ(other_->leases.size(), before) << "the gate admits no more";
  data_->SetCredits(session_, 8);
  Heartbeats(2, held);
  ASSERT_EQ(sink_->revoked.size(), 1u);
  EXPECT_EQ(sink_->revoked.All()[0], stuck);
  EXPECT_EQ(other_->revoked.size(), 0u);
  ASSERT_GT(other_->leases.size(), before);
  EXPECT_EQ(other_->leases.All()[before].id, (LeaseId{stuck.group, 2}));
  EXPECT_EQ(sink_->leases.size(), 1u);
  TrainingData::Status status = data_->GetStatus();
  EXPECT_EQ(status.leases.stalled, 1);
  EXPECT_EQ(status.leases.timed_out, 0);
  EXPECT_EQ(status.rollouters[0].stalled_groups, 1);
  EXPECT_EQ(status.rollouters[1].stalled_groups, 0);

  data_->ReturnLease(session_, stuck, absl::AbortedError("its generation has ended"));
  EXPECT_EQ(data_->GetStatus().rollouters[0].stalled_groups, 0);
  EXPECT_EQ(data_->GetStatus().rollouters[0].returned_groups, 0) << "the lease was not held any more";
}

TEST_F(StalledRollouterTest, IsRevokedWhenAnotherAnswersALateGroupFirst) {
  Start();
  data_->SetCredits(good_, 2);
  ASSERT_TRUE(other_->leases.WaitFor(2));
  for (const Lease& lease : other_->leases.All()) data_->Submit(good_, RightAnswer(lease));
  ASSERT_TRUE(other_->acks.WaitFor(2));
  ASSERT_THAT(data_->TakeBatch(), IsOk());
  data_->FinishStep();
  data_->RecordPublished({1, 1});
  for (const SessionId session : {session_, good_}) data_->SetServing(session, {1, 1});
  data_->SetCredits(session_, 1);
  ASSERT_TRUE(sink_->leases.WaitFor(1));
  const Lease late = sink_->leases.All()[0];
  clock_.Advance(absl::Milliseconds(1100));  // the groups before took no time
  data_->SetCredits(good_, 1);
  ASSERT_EQ(other_->leases.size(), 3u);
  const Lease second = other_->leases.All()[2];
  EXPECT_EQ(second.id, (LeaseId{late.id.group, 2}));
  data_->Submit(good_, RightAnswer(second));
  ASSERT_TRUE(other_->acks.WaitFor(3));
  EXPECT_EQ(other_->acks.All()[2].result, Result::kAccepted);
  ASSERT_EQ(sink_->revoked.size(), 1u);
  EXPECT_EQ(sink_->revoked.All()[0], late.id);
  data_->Submit(session_, RightAnswer(late));
  ASSERT_TRUE(sink_->acks.WaitFor(1));
  EXPECT_EQ(sink_->acks.All()[0].result, Result::kExpired);
  const TrainingData::Status status = data_->GetStatus();
  EXPECT_EQ(status.leases.superseded, 1);
  EXPECT_EQ(status.groups.failed_attempts, 0);
  EXPECT_EQ(status.rollouters[0].invalid_groups, 0);
}

TEST_F(StalledRollouterTest, LosesItsEvaluationLeasesToo) {
  Start();
  data_->SetCredits(session_, 8);
  data_->SetCredits(good_, 0);
  const size_t training = sink_->leases.size();
  data_->StartEvaluation({1, 0});
  ASSERT_EQ(sink_->leases.size(), training) << "no room";
  data_->Disconnect(session_);
  sink_ = std::make_shared<RecordingSink>();
  session_ = *data_->Connect(TrainingDataWorld::Member("r0"), TrainingDataWorld::kRunId, sink_);
  data_->SetServing(session_, {1, 0});
  data_->SetCredits(session_, 2);  // credits for 4 samples
  const std::vector<Lease> leased = sink_->leases.All();
  ASSERT_EQ(std::count_if(leased.begin(), leased.end(),
                          [](const Lease& lease) { return lease.kind == LeaseKind::kEvaluation; }),
            4)
      << "as many as it has room for: only one of two rollouters gets prompts";
  data_->SetCredits(good_, 8);
  data_->SetCredits(good_, 8);
  Heartbeats(31, HeldByOther());
  EXPECT_GE(sink_->revoked.size(), 4u);
  int again = 0;
  for (const Lease& lease : other_->leases.All())
    again += lease.kind == LeaseKind::kEvaluation && lease.id.attempt == 2;
  EXPECT_EQ(again, 4);
}

TEST_F(StalledRollouterTest, ATrainerThatStoodStillItselfFirstHearsWhatWasSaidMeanwhile) {
  Start();
  data_->SetCredits(session_, 1);
  ASSERT_TRUE(sink_->leases.WaitFor(1));
  Heartbeats(1);
  clock_.Advance(absl::Minutes(5));
  data_->SetServing(good_, {1, 0});
  EXPECT_EQ(sink_->revoked.size(), 0u);
  data_->RecordProgress(session_, {sink_->leases.All()[0].id});
  Heartbeats(29);
  EXPECT_EQ(sink_->revoked.size(), 0u);
  Heartbeats(2);
  EXPECT_EQ(sink_->revoked.size(), 1u);
}

TEST_F(TrainingDataTest, ARollouterThatHandsBackEveryLeaseGetsNoMoreAndNoPromptIsLost) {
  Open();
  size_t returned = 0;
  for (; returned < static_cast<size_t>(RolloutSessions::kInvalidInRow); ++returned) {
    data_->SetCredits(session_, 1);
    ASSERT_TRUE(sink_->leases.WaitFor(returned + 1));
    data_->ReturnLease(session_, sink_->leases.All()[returned].id,
                       Error(absl::StatusCode::kInternal, "NO_REWARD", "the reward\nis broken"));
  }
  data_->SetCredits(session_, 8);
  EXPECT_EQ(sink_->leases.size(), returned);
  TrainingData::Status status = data_->GetStatus();
  EXPECT_EQ(status.leases.quarantines, 1);
  EXPECT_EQ(status.rollouters[0].returned_groups, RolloutSessions::kInvalidInRow);
  EXPECT_EQ(status.rollouters[0].invalid_groups, 0);
  EXPECT_GT(status.rollouters[0].quarantine_seconds, 0);
  EXPECT_THAT(status.rollouters[0].last_fault, ::testing::HasSubstr("handed back group 0/0: the reward\\nis broken"));
  EXPECT_TRUE(status.leases.invalid.empty()) << "nothing was submitted";

  auto other = std::make_shared<RecordingSink>();
  const SessionId good = *data_->Connect(TrainingDataWorld::Member("r1", "i2"), "run-1", other);
  data_->SetServing(good, {1, 0});
  data_->SetCredits(good, 1);
  ASSERT_EQ(other->leases.size(), 1u);
  EXPECT_EQ(other->leases.All()[0].id.group, (GroupId{0, 0}));
}

TEST_F(TrainingDataTest, AnswersThatCannotBeReadCountAsInvalidToo) {
  Open();
  data_->SetCredits(session_, 1);
  ASSERT_TRUE(sink_->leases.WaitFor(1));
  data_->Reject(session_, sink_->leases.All()[0].id,
                Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", "no such finish reason"));
  EXPECT_EQ(data_->GetStatus().leases.invalid.at("BAD_MESSAGE"), 1);
  EXPECT_EQ(data_->GetStatus().rollouters[0].invalid_groups, 1);
}

}  // namespace
}  // namespace syncopate::trainer
