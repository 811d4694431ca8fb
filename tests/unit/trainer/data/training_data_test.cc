#include "trainer/data/training_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/data/training_data_rollouter.h"

namespace syncopate::trainer {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using Result = GroupLedger::Result;

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

  // The log alone restores the same state.
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
  // The replay is repeated: from the checkpoint, from the log alone, and from the checkpoint of a resumed incarnation.
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
  EXPECT_EQ(data_->GetStatus().groups.trained, 2) << "of this incarnation";
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
    EXPECT_EQ(data_->GetStatus().sums.rolled_back, 2) << "the answers of the second incarnation were not undone";
    EXPECT_EQ(data_->GetStatus().sums.accepted, 6);
    EXPECT_EQ(data_->GetStatus().sums.trained, 2);
  }
}

TEST_F(TrainingDataTest, WhatIsDroppedIsReportedWithItsAnswersOnceTheLogHasIt) {
  struct Dropped {
    DropReason reason;
    int64_t ordinal;
    size_t samples;
    PolicyVersion at;
    bool operator==(const Dropped&) const = default;
  };
  Mailbox<Dropped> dropped;
  world_.on_dropped = [&dropped](const DropRecord& drop, const PolicyVersion& at) {
    dropped.Put({drop.reason, drop.lease.group.ordinal, drop.group->samples.size(), at});
  };
  world_.options.ledger.refill_zero_variance = true;
  Open();
  data_->SetCredits(session_, 1);
  ASSERT_TRUE(sink_->leases.WaitFor(1));
  TrajectoryGroup group = RightAnswer(sink_->leases.All()[0]);
  for (Trajectory& sample : group.samples) sample.reward = 1;
  data_->Submit(session_, std::move(group));
  ASSERT_TRUE(dropped.WaitFor(1));
  EXPECT_EQ(dropped.All()[0], (Dropped{DropReason::kFiltered, 0, 2, {1, 0}}));
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

TEST_F(TrainingDataTest, LeasesNothingMoreWhenTheJudgeHasUsedTheRunsTokens) {
  world_.options.judge_tokens = 25;
  Open();
  const auto other_sink = std::make_shared<RecordingSink>();
  const SessionId other = *data_->Connect(TrainingDataWorld::Member("r1", "i2"), TrainingDataWorld::kRunId, other_sink);
  data_->SetServing(other, {1, 0});
  data_->SetWork(session_, {.judge_tokens = 10});
  data_->SetWork(other, {.judge_tokens = 14});
  Answer(1);
  data_->SetWork(other, {.judge_tokens = 15});  // replaces 14: together 25
  data_->SetCredits(session_, 4);
  data_->SetCredits(other, 4);
  const Explanation why = data_->GetStatus().explanation;
  EXPECT_EQ(why.waiting_for, "rewards");
  EXPECT_EQ(why.detail, "the judge has used 25 tokens, and reward.judge_tokens is 25");
  EXPECT_EQ(sink_->leases.size(), 1u);
  EXPECT_EQ(other_sink->leases.size(), 0u);
  data_->Disconnect(other);  // what it has used stays used
  data_->SetCredits(session_, 4);
  EXPECT_EQ(sink_->leases.size(), 1u);
}

TEST_F(TrainingDataTest, RolloutersThatComeAndGoAreCountedOnceAndTheirListStaysShort) {
  Open();
  constexpr size_t kMany = 2 * RolloutRoster::kListed;
  const auto connect = [&](size_t i) {
    return *data_->Connect(TrainingDataWorld::Member(absl::StrCat("many-", i), absl::StrCat("process-", i)),
                           TrainingDataWorld::kRunId, std::make_shared<RecordingSink>());
  };
  for (size_t i = 0; i < kMany; ++i) {
    const SessionId session = connect(i);
    data_->SetWork(session, {.judge_tokens = 2});
    data_->Disconnect(session);
  }
  EXPECT_LE(data_->GetRoster().entries().size(), RolloutRoster::kListed);
  for (size_t i = 0; i < kMany; ++i) data_->SetWork(connect(i), {.judge_tokens = 3});
  EXPECT_EQ(data_->GetRoster().Total().judge_tokens, static_cast<int64_t>(3 * kMany));
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
  world_.options.log.segments.segment_bytes = 64;  // makes a file for each record
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
        mutex_.AwaitWithTimeout(Condition(&work), absl::Milliseconds(20));  // then reports the serving version again
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

}  // namespace
}  // namespace syncopate::trainer
