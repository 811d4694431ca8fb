#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/data/training_data_fixture.h"

namespace syncopate::trainer {

// Keeps the messages that it gets.
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

// One rollouter, r0, whose answers are right.
class TrainingDataTest : public ::testing::Test {
 protected:
  void Open(const PolicyVersion& version = {1, 0}, const std::string& snapshot = "") {
    auto data = world_.Open(version, snapshot);
    ASSERT_THAT(data, testing::IsOk());
    data_ = *std::move(data);
    sink_ = std::make_shared<RecordingSink>();
    session_ = *data_->Connect(TrainingDataWorld::Member("r0"), TrainingDataWorld::kRunId, sink_);
    data_->SetServing(session_, version);
  }

  // Answers `groups` groups and waits until they are acknowledged.
  void Answer(size_t groups) {
    const size_t leased = sink_->leases.size(), acked = sink_->acks.size();
    data_->SetCredits(session_, static_cast<int32_t>(groups));
    ASSERT_TRUE(sink_->leases.WaitFor(leased + groups));
    for (size_t i = leased; i < leased + groups; ++i) data_->Submit(session_, RightAnswer(sink_->leases.All()[i]));
    ASSERT_TRUE(sink_->acks.WaitFor(acked + groups));
    for (size_t i = acked; i < acked + groups; ++i)
      EXPECT_EQ(sink_->acks.All()[i].result, GroupLedger::Result::kAccepted);
  }

  std::vector<LeaseId> Train() {
    auto batch = NextBatch(*data_, Clock::Real()->Now() + kTestDeadline);
    EXPECT_THAT(batch, testing::IsOk());
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

}  // namespace syncopate::trainer
