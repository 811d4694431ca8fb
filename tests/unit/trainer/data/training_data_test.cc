#include "trainer/data/training_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/data/training_data_fixture.h"
#include "trainer/data/prompt_queue.h"

namespace syncopate::trainer {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using Result = GroupLedger::Result;

// Keeps what it is sent.
class RecordingSink : public RolloutSink {
 public:
  void SendLease(const Lease& lease) override { leases.Put(lease); }
  void SendAck(const Ack& ack) override { acks.Put(ack); }
  void SendRevoke(const LeaseId& lease, const std::string&) override { revoked.Put(lease); }
  void Close(const absl::Status& why) override { closed.Put(why); }
  Mailbox<Lease> leases;
  Mailbox<Ack> acks;
  Mailbox<LeaseId> revoked;
  Mailbox<absl::Status> closed;
};

class TrainingDataTest : public ::testing::Test {
 protected:
  void Open(const PolicyVersion& version = {1, 0}, const std::string& snapshot = "") {
    auto data = world_.Open(version, snapshot);
    ASSERT_THAT(data, IsOk());
    data_ = *std::move(data);
    sink_ = std::make_shared<RecordingSink>();
    session_ = *data_->Connect(TrainingDataWorld::Member("r0"), TrainingDataWorld::kRunId, sink_);
    data_->SetServing(session_, version);
  }

  // Has `groups` groups answered and acknowledged.
  void Answer(size_t groups) {
    const size_t leased = sink_->leases.size(), acked = sink_->acks.size();
    data_->SetCredits(session_, static_cast<int32_t>(groups));
    ASSERT_TRUE(sink_->leases.WaitFor(leased + groups));
    for (size_t i = leased; i < leased + groups; ++i) data_->Submit(session_, RightAnswer(sink_->leases.All()[i]));
    ASSERT_TRUE(sink_->acks.WaitFor(acked + groups));
    for (size_t i = acked; i < acked + groups; ++i) EXPECT_EQ(sink_->acks.All()[i].result, Result::kAccepted);
  }

  std::vector<LeaseId> Train() {
    auto batch = NextBatch(*data_, Clock::Real()->Now() + kTestDeadline);
    EXPECT_THAT(batch, IsOk());
    if (!batch.ok()) return {};
    std::vector<LeaseId> ids;
    for (const SharedGroup& group : batch->groups) ids.push_back(group->lease);
    replays_ += batch->is_replay;
    data_->FinishStep();
    data_->RecordPublished(data_->version());
    data_->SetServing(session_, data_->version());
    return ids;
  }

  void CrashAndOpen(const PolicyVersion& version, const std::string& snapshot = "") {
    data_.reset();
    world_.disk.Restart(testing::FaultyFileSystem::Survives::kSynced);
    replays_ = 0;
    Open(version, snapshot);
  }

  TrainingDataWorld world_;
  std::shared_ptr<RecordingSink> sink_;
  SessionId session_ = 0;
  int replays_ = 0;
  std::unique_ptr<TrainingData> data_;
};

TEST_F(TrainingDataTest, SaysWhenThereIsNoBatchYet) {
  Open();
  EXPECT_THAT(NextBatch(*data_, absl::InfinitePast()), HasReason("NO_BATCH"));
  EXPECT_EQ(data_->GetStatus().explanation.waiting_for, "groups");
}

TEST_F(TrainingDataTest, EndsWithAPartialBatchAndThenTheData) {
  world_.options.ledger.max_groups = 3;
  Open();
  Answer(3);
  EXPECT_EQ(Train().size(), 2u);
  EXPECT_EQ(Train().size(), 1u);
  EXPECT_THAT(NextBatch(*data_, absl::InfiniteFuture()), HasReason("DATA_ENDED"));
}

TEST_F(TrainingDataTest, StopWakesEveryWaiter) {
  Open();
  Mailbox<absl::Status> woken;
  std::thread batch([&] { woken.Put(NextBatch(*data_, absl::InfiniteFuture()).status()); });
  data_->StartEvaluation({1, 0});
  std::thread evaluation([&] { woken.Put(data_->WaitForEvaluation(absl::InfiniteFuture()).status()); });
  data_->Stop();
  EXPECT_TRUE(woken.WaitFor(2));
  for (const absl::Status& status : woken.All()) EXPECT_THAT(status, HasReason("STOPPED"));
  EXPECT_TRUE(sink_->closed.WaitFor(1));
  batch.join();
  evaluation.join();
  EXPECT_THAT(data_->Connect(TrainingDataWorld::Member("r1"), TrainingDataWorld::kRunId, sink_), HasReason("STOPPED"));
}

TEST_F(TrainingDataTest, ACrashLosesNothingAcknowledgedAndRepeatsTheTakesAfterTheCheckpoint) {
  Open();
  Answer(8);
  std::vector<LeaseId> first = Train();
  TrainingData::DataSnapshot snapshot = data_->Snapshot().value();
  std::vector<LeaseId> second = Train();
  std::vector<LeaseId> third = Train();
  CrashAndOpen({2, 1}, snapshot.bytes);
  EXPECT_EQ(Train(), second);
  EXPECT_EQ(Train(), third);
  EXPECT_EQ(replays_, 2);
  EXPECT_EQ(data_->GetStatus().queued_groups, 2) << "made by version 0, acknowledged, not taken";
  std::vector<LeaseId> fourth = Train();
  EXPECT_EQ(fourth[0].group.ordinal, 6);
  EXPECT_EQ(replays_, 2);

  // And once more, from nothing but the log.
  CrashAndOpen({3, 0});
  EXPECT_EQ(Train(), first);
  EXPECT_EQ(Train(), second);
  EXPECT_EQ(Train(), third);
  EXPECT_EQ(Train(), fourth);
  EXPECT_EQ(replays_, 4);
}

TEST_F(TrainingDataTest, GroupsOfUndoneVersionsAreDroppedForGood) {
  Open();
  Answer(2);
  Train();
  Answer(2);  // by version 1
  CrashAndOpen({2, 0});
  EXPECT_EQ(data_->GetStatus().groups.rolled_back, 2);
  EXPECT_EQ(data_->GetStatus().queued_groups, 0);
  EXPECT_EQ(Train().size(), 2u);  // the replay
  TrainingData::DataSnapshot snapshot = data_->Snapshot().value();
  CrashAndOpen({3, 1}, snapshot.bytes);
  EXPECT_EQ(data_->GetStatus().queued_groups, 0) << "version 1 of epoch 1 is not version 1 of epoch 2";
  Answer(1);
  EXPECT_EQ(sink_->leases.All()[0].id, (LeaseId{{0, 2}, 2}));
}

TEST_F(TrainingDataTest, TheSumsOfAResumedRunAreThoseOfOneThatWasNeverKilled) {
  Open();
  Answer(8);
  for (int i = 0; i < 2; ++i) Train();
  const TrainingData::DataSnapshot second = data_->Snapshot().value();
  for (int i = 0; i < 2; ++i) Train();
  const TrainingSums twin = data_->GetStatus().sums;
  EXPECT_EQ(twin.accepted, 8);
  EXPECT_EQ(twin.trained, 8);
  EXPECT_EQ(twin.staleness.groups, 8);
  EXPECT_EQ(twin.staleness.Max(), 3);
  // Again and again, from the checkpoint, from nothing but the log, and from the checkpoint of a resumed life.
  for (int life = 2; life < 4; ++life) {
    CrashAndOpen({life, 2}, second.bytes);
    for (int i = 0; i < 2; ++i) Train();
    EXPECT_EQ(data_->GetStatus().sums, twin);
  }
  CrashAndOpen({4, 0});
  for (int i = 0; i < 3; ++i) Train();
  const TrainingData::DataSnapshot third = data_->Snapshot().value();
  CrashAndOpen({5, 3}, third.bytes);
  Train();
  EXPECT_EQ(data_->GetStatus().sums, twin);
  EXPECT_EQ(data_->GetStatus().groups.trained, 2) << "of this life";
}

TEST_F(TrainingDataTest, WhatARestoreUndoesIsCountedOnceHoweverOftenTheRunIsResumed) {
  Open();
  Answer(2);
  Train();
  Answer(2);  // by version 1
  CrashAndOpen({2, 0});
  EXPECT_EQ(data_->GetStatus().sums.rolled_back, 2);
  EXPECT_EQ(data_->GetStatus().sums.accepted, 4);
  Train();  // the replay
  const TrainingData::DataSnapshot first = data_->Snapshot().value();
  Answer(2);
  for (int life = 3; life < 5; ++life) {
    CrashAndOpen({life, 1}, first.bytes);
    EXPECT_EQ(data_->GetStatus().sums.rolled_back, 2) << "the second life's answers were not undone";
    EXPECT_EQ(data_->GetStatus().sums.accepted, 6);
    EXPECT_EQ(data_->GetStatus().sums.trained, 2);
  }
}

TEST_F(TrainingDataTest, FilteredGroupsAreCountedFromTheLogToo) {
  world_.options.ledger.refill_zero_variance = true;
  Open();
  data_->SetCredits(session_, 1);
  ASSERT_TRUE(sink_->leases.WaitFor(1));
  TrajectoryGroup group = RightAnswer(sink_->leases.All()[0]);
  for (Trajectory& sample : group.samples) sample.reward = 1;
  data_->Submit(session_, std::move(group));
  ASSERT_TRUE(sink_->acks.WaitFor(1));
  const TrainingData::DataSnapshot before = data_->Snapshot().value();
  for (const std::string& snapshot : {std::string(), before.bytes}) {
    CrashAndOpen({2, 0}, snapshot);
    EXPECT_EQ(data_->GetStatus().sums.accepted, 1);
    EXPECT_EQ(data_->GetStatus().sums.filtered, 1);
  }
}

TEST_F(TrainingDataTest, ATakeThatTheDiskRefusesComesAgainWithTheSameGroups) {
  Open();
  Answer(4);
  world_.disk.SetCapacity(0);
  EXPECT_FALSE(NextBatch(*data_, absl::InfiniteFuture()).ok());
  EXPECT_THAT(data_->Snapshot(), HasReason("TAKE_PENDING"));
  EXPECT_EQ(data_->GetStatus().explanation.waiting_for, "disk");
  world_.disk.SetCapacity(1 << 30);
  std::vector<LeaseId> taken = Train();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].group.ordinal, 0);
  EXPECT_EQ(data_->GetStatus().groups.trained, 2);
}

TEST_F(TrainingDataTest, LeasesNothingForAWhileAfterTheDiskHasRefusedAnAnswerAndSaysWhy) {
  HandClock clock;
  world_.clock = &clock;
  Open();
  data_->SetCredits(session_, 1);
  ASSERT_TRUE(sink_->leases.WaitFor(1));
  world_.disk.SetCapacity(0);
  data_->Submit(session_, RightAnswer(sink_->leases.All()[0]));
  ASSERT_TRUE(sink_->acks.WaitFor(1));
  EXPECT_THAT(sink_->acks.All()[0].error, HasReason("NO_SPACE"));
  data_->SetCredits(session_, 1);
  EXPECT_EQ(sink_->leases.size(), 1u);
  const Explanation why = data_->GetStatus().explanation;
  EXPECT_EQ(why.waiting_for, "disk");
  EXPECT_THAT(why.detail, ::testing::HasSubstr("/log"));

  world_.disk.SetCapacity(1 << 30);
  clock.Advance(absl::Seconds(1));
  Answer(2);
  EXPECT_EQ(sink_->leases.All()[1].id, (LeaseId{{0, 0}, 2}));
  EXPECT_NE(data_->GetStatus().explanation.waiting_for, "disk");
  data_.reset();  // before the clock
}

TEST_F(TrainingDataTest, RefusesASnapshotThatIsNone) {
  EXPECT_THAT(world_.Open({1, 0}, "\xff\xff nonsense"), HasReason("BAD_SNAPSHOT"));
}

TEST_F(TrainingDataTest, PrunesTheLogToWhatTheCheckpointNeeds) {
  world_.options.log.segments.segment_bytes = 64;  // a record a file
  Open();
  Answer(6);
  Train();
  TrainingData::DataSnapshot snapshot = data_->Snapshot().value();
  EXPECT_EQ(snapshot.oldest_needed_record, 3u);
  data_->PruneLog(snapshot.oldest_needed_record);
  CrashAndOpen({2, 1}, snapshot.bytes);
  EXPECT_EQ(data_->GetStatus().queued_groups, 4);
  EXPECT_EQ(Train()[0].group.ordinal, 2);
}

TEST_F(TrainingDataTest, EvaluationEndsWhenRolloutersHaveGoneOn) {
  Open();
  EXPECT_THAT(data_->WaitForEvaluation(absl::InfiniteFuture()), HasReason("NO_EVALUATION"));
  data_->StartEvaluation({1, 0});
  EXPECT_THAT(data_->WaitForEvaluation(absl::InfinitePast()), HasReason("EVALUATING"));
  EXPECT_EQ(data_->GetStatus().explanation.waiting_for, "evaluation");
  data_->SetServing(session_, {1, 1});
  EXPECT_THAT(data_->WaitForEvaluation(absl::InfiniteFuture()), HasReason("OVERTAKEN"));
}

// Answers its leases from a thread of its own.
class BusyRollouter : public RolloutSink {
 public:
  BusyRollouter(TrainingData* data, int index) : data_(data), name_(absl::StrCat("busy-", index)) {}
  void Start(std::shared_ptr<BusyRollouter> self) {
    session_ = *data_->Connect(TrainingDataWorld::Member(name_), TrainingDataWorld::kRunId, self);
    thread_ = std::thread([this] { Run(); });
  }
  void Join() {
    {
      MutexLock lock(&mutex_);
      done_ = true;
    }
    thread_.join();
  }
  void SendLease(const Lease& lease) override {
    MutexLock lock(&mutex_);
    leases_.push_back(lease);
  }
  void SendAck(const Ack&) override {}
  void SendRevoke(const LeaseId&, const std::string&) override {}
  void Close(const absl::Status&) override {}

 private:
  void Run() {
    while (true) {
      data_->SetServing(session_, data_->version());
      data_->SetCredits(session_, 4);
      std::deque<Lease> leases;
      {
        MutexLock lock(&mutex_);
        auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ || !leases_.empty(); };
        mutex_.AwaitWithTimeout(Condition(&work), absl::Milliseconds(20));  // then say again what is served
        if (done_) return;
        leases.swap(leases_);
      }
      for (const Lease& lease : leases) data_->Submit(session_, RightAnswer(lease));
    }
  }

  TrainingData* const data_;
  const std::string name_;
  SessionId session_ = 0;
  std::thread thread_;
  Mutex mutex_;
  std::deque<Lease> leases_ ABSL_GUARDED_BY(mutex_);
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST(TrainingDataThreadsTest, ManyRolloutersAndTheStepThreadAgree) {
  TrainingDataWorld world(/*batch=*/4, /*max_staleness=*/2, /*target=*/1);
  auto opened = world.Open();
  ASSERT_THAT(opened, IsOk());
  TrainingData* data = opened->get();
  std::vector<std::shared_ptr<BusyRollouter>> rollouters;
  for (int i = 0; i < 3; ++i) {
    rollouters.push_back(std::make_shared<BusyRollouter>(data, i));
    rollouters.back()->Start(rollouters.back());
  }
  std::set<GroupId> trained;
  for (int64_t step = 0; step < 40; ++step) {
    auto batch = NextBatch(*data, Clock::Real()->Now() + kTestDeadline);
    ASSERT_THAT(batch, IsOk());
    EXPECT_LE(batch->staleness.Max(), 2);
    for (const SharedGroup& group : batch->groups) EXPECT_TRUE(trained.insert(group->lease.group).second);
    data->FinishStep();
    data->RecordPublished(data->version());
  }
  for (auto& rollouter : rollouters) rollouter->Join();
  TrainingData::Status status = data->GetStatus();
  EXPECT_EQ(status.groups.trained, 160);
  EXPECT_EQ(status.staleness.violating_groups, 0);
  EXPECT_EQ(status.rollouters.size(), 3u);
}

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
  EXPECT_EQ(status.groups.failed, RolloutSessions::kInvalidInRow);
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
  ~StalledRollouterTest() override { data_.reset(); }  // before the clock

  // Both say each second that they live, and the good one how its leases come along.
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
  EXPECT_EQ(data_->GetStatus().rollouters[0].returned_groups, 0) << "it was not held any more";
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
  data_->SetCredits(session_, 2);  // 4 samples
  const std::vector<Lease> leased = sink_->leases.All();
  ASSERT_EQ(std::count_if(leased.begin(), leased.end(),
                          [](const Lease& lease) { return lease.kind == LeaseKind::kEvaluation; }),
            4)
      << "as many as it has room for: of two rollouters one alone is asked";
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
