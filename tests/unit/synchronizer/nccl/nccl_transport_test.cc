#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/unit/synchronizer/nccl/nccl_rig.h"

namespace syncopate::synchronizer {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::Each;

struct Shape {
  const char* source_layout;
  int replicas;
  const char* destination_layout;
  int64_t communicators;
};

class NcclShapeTest : public ::testing::TestWithParam<Shape> {};

TEST_P(NcclShapeTest, BringsEveryByteOnceInThreeSyncsOverTheSameCommunicators) {
  NcclRig rig(GetParam().source_layout, GetParam().replicas, GetParam().destination_layout);
  for (int64_t step : {1, 2, 3}) rig.ExpectSyncs(step);
  EXPECT_EQ(rig.network()->ids(), GetParam().communicators);
  EXPECT_EQ(rig.source()->staged.pins(), 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, NcclShapeTest,
                         ::testing::Values(Shape{"whole", 1, "whole:1", 1}, Shape{"flat:2", 2, "whole:1", 1},
                                           Shape{"flat:3", 1, "whole:1", 1}, Shape{"whole", 3, "whole:1", 1},
                                           Shape{"flat:2", 3, "whole:1", 2}, Shape{"fsdp2:2", 1, "whole:2", 1},
                                           Shape{"fsdp2:2", 3, "whole:2", 4}));

TEST_P(NcclShapeTest, WhatARehearsalFormsIsWhatTheNextSyncsUse) {
  NcclRig rig(GetParam().source_layout, GetParam().replicas, GetParam().destination_layout);
  Mailbox<absl::Status> connected;
  rig.BeginRehearsal(&connected);  // no version is staged yet
  ASSERT_TRUE(connected.WaitFor(rig.taking_part()));
  EXPECT_THAT(connected.All(), Each(IsOk()));
  rig.Finish();
  const int formed = rig.receiver()->control.counts().joins;
  EXPECT_GE(formed, 1);
  for (int64_t step : {1, 2}) rig.ExpectSyncs(step);
  EXPECT_EQ(rig.receiver()->control.counts().joins, formed);
  EXPECT_EQ(rig.network()->ids(), GetParam().communicators);
}

TEST(NcclTransportTest, ASourceThatWasNotToldItsRankIsRefused) {
  NcclSource::Options options;
  options.manifest = std::make_shared<const Manifest>(SmallModel());
  options.facts = {22809, "GPU-t0"};
  EXPECT_THAT(options.Validate(), HasReason("BAD_OPTIONS"));
  options.rank = 1;
  EXPECT_THAT(options.Validate(), IsOk());
}

TEST(NcclTransportTest, ASyncOfTheSameMembersUsesWhatARehearsalIsStillForming) {
  NcclRig rig("whole", 2, "whole:1");
  rig.Stage(1);
  rig.receiver(1)->control.Freeze(true);  // its first message is not delivered, so the rehearsal stays open
  Mailbox<absl::Status> connected;
  rig.BeginRehearsal(&connected);
  ASSERT_THAT(rig.Prepare(1), IsOk()) << "no member waits for the rehearsal";
  Mailbox<std::vector<absl::Status>> synced;
  std::jthread sync([&] { synced.Put(rig.Exchange()); });
  EXPECT_FALSE(synced.WaitFor(1, absl::Milliseconds(30)));
  rig.receiver(1)->control.Freeze(false);
  ASSERT_TRUE(synced.WaitFor(1));
  EXPECT_THAT(synced.All()[0], Each(IsOk()));
  EXPECT_THAT(connected.All(), Each(IsOk()));
  for (int32_t place : {0, 1}) rig.ExpectArrived(place);
  EXPECT_EQ(rig.network()->ids(), 1);
}

TEST(NcclTransportTest, ARehearsalThatIsEndedLeavesTheNextSyncToFormTheGroup) {
  NcclRig rig("whole", 2, "whole:1");
  rig.receiver(1)->control.Freeze(true);
  Mailbox<absl::Status> connected;
  rig.BeginRehearsal(&connected);
  rig.Finish();
  ASSERT_TRUE(connected.WaitFor(rig.taking_part()));
  EXPECT_THAT(connected.All(), ::testing::Contains(HasReason("CLOSED")));
  rig.receiver(1)->control.Freeze(false);
  rig.Stage(1);
  // Two attempts, since a member that had connected may keep the communicator that others aborted.
  for (int attempt = 0; attempt < 2; ++attempt) {
    ASSERT_THAT(rig.Prepare(1), IsOk());
    if (rig.source()->member.rendezvous.find(rig.group()) == std::string::npos) break;
    EXPECT_THAT(rig.Start(0), HasReason("GROUP_LOST"));
    rig.Finish();
  }
  EXPECT_THAT(rig.Exchange(), Each(IsOk()));
  for (int32_t place : {0, 1}) rig.ExpectArrived(place);
}

TEST(NcclTransportTest, IdsThatFewerReceiversDoNotNeedAreUsedForTheNextGroup) {
  NcclRig rig("flat:2", 3, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());  // by broadcast: one communicator for each source
  EXPECT_EQ(rig.network()->ids(), 2);
  rig.LeaveOut(2);  // this receiver has not answered in time
  EXPECT_THAT(rig.Exchange(), Each(IsOk()));
  rig.Finish();
  ASSERT_THAT(rig.Prepare(1, {0}), IsOk());
  EXPECT_THAT(rig.Exchange(), Each(IsOk()));
  EXPECT_EQ(rig.network()->ids(), 2) << "the communicator that was left over";
}

TEST(NcclTransportTest, ADeadMemberHangsTheOthersUntilTheyAreToldAndTheNextGroupWorks) {
  NcclRig rig("flat:2", 2, "whole:1");
  rig.ExpectSyncs(1);
  rig.Stage(2);
  ASSERT_THAT(rig.Prepare(2), IsOk());
  rig.source(1)->control.Freeze(true);  // as if killed or stopped: it moves and sends nothing
  ASSERT_THAT(rig.Start(0), IsOk());
  ASSERT_THAT(rig.Start(1), IsOk());
  Mailbox<absl::Status> outcome;
  std::jthread first([&] { outcome.Put(rig.ReceiveOne(0)); });
  std::jthread second([&] { outcome.Put(rig.ReceiveOne(1)); });
  EXPECT_FALSE(outcome.WaitFor(1, absl::Milliseconds(30)));
  for (size_t i : {0, 1}) rig.receiver(i)->stop.request_stop();
  rig.Finish();
  ASSERT_TRUE(outcome.WaitFor(2, absl::Seconds(5)));
  EXPECT_THAT(outcome.All(), Each(HasReason("CANCELLED")));
  for (size_t i : {0, 1}) EXPECT_EQ(rig.receiver(i)->control.counts().aborts, 1);
  // Two sources in two attempts: they read their slots no more, and other weights may be staged.
  ASSERT_TRUE(rig.done()->WaitFor(4));
  // Another source takes its place, and there is one receiver fewer.
  rig.source(1)->control.Freeze(false);
  rig.receiver(0)->stop = std::stop_source();
  rig.Stage(3);
  ASSERT_THAT(rig.Prepare(3, {0}), IsOk());
  EXPECT_THAT(rig.Exchange(), Each(IsOk()));
  rig.ExpectArrived(0);
}

TEST(NcclTransportTest, TheDeadlineEndsAGroupThatNeverMeets) {
  NcclRig rig("flat:2", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1, {}, absl::Milliseconds(60)), IsOk());
  ASSERT_THAT(rig.Start(0), IsOk());  // source rank 1 does not start
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("DEADLINE"));
  ASSERT_TRUE(rig.done()->WaitFor(1));
  EXPECT_THAT(rig.done()->All()[0], HasReason("DEADLINE"));
  EXPECT_EQ(rig.source(0)->control.counts().open, 0);
}

TEST(NcclTransportTest, AFailedCommunicatorIsAbortedAndReplaced) {
  NcclRig rig("whole", 1, "whole:1");
  rig.ExpectSyncs(1);
  rig.Stage(2);
  ASSERT_THAT(rig.Prepare(2), IsOk());
  rig.receiver()->control.SetPollError(Error(absl::StatusCode::kUnavailable, "PEER_LOST", "a broken link"));
  ASSERT_THAT(rig.Start(0), IsOk());
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("PEER_LOST"));
  ASSERT_TRUE(rig.done()->WaitFor(2));  // a source that is cancelled during the transfer loses the group too
  rig.Finish();
  rig.receiver()->control.SetPollError(absl::OkStatus());
  // Every member sees that the receiver has lost the group that the source still has; the next attempt forms a new
  // group.
  ASSERT_THAT(rig.Prepare(2), IsOk());
  EXPECT_THAT(rig.Start(0), HasReason("GROUP_LOST"));
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("GROUP_LOST"));
  rig.Finish();
  ASSERT_THAT(rig.Prepare(2), IsOk());
  EXPECT_THAT(rig.Exchange(), Each(IsOk()));
  rig.ExpectArrived(0);
}

TEST(NcclTransportTest, AMemberWithoutTheCommunicatorsOfAKnownGroupSaysSo) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.source()->member.rendezvous = nccl::Rendezvous{22809, "GPU-t0", "", {}}.ToString();
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("GROUP_LOST"));
}

TEST(NcclTransportTest, IdsOfAnAttemptThatNeverStartedAreUsedForTheNext) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  for (int i = 0; i < 5; ++i) {
    ASSERT_THAT(rig.Prepare(1), IsOk());
    rig.Finish();
  }
  EXPECT_EQ(rig.network()->ids(), 1);
  EXPECT_EQ(rig.source()->staged.pins(), 0);
}

TEST(NcclTransportTest, AtMostTwoGroupsAreKeptAndOlderOnesFinalised) {
  NcclRig rig("whole", 3, "whole:1");
  rig.Stage(1);
  for (const std::vector<int>& members : {std::vector<int>{0}, {1}, {2}, {0, 1}, {0, 2}}) {
    ASSERT_THAT(rig.Prepare(1, members), IsOk());
    EXPECT_THAT(rig.Exchange(), Each(IsOk()));
    rig.Finish();
  }
  testing::Eventually(kTestDeadline, [&] { return rig.source()->control.counts().finalised >= 3; });
  EXPECT_EQ(rig.source()->control.counts().finalised, 3);
  EXPECT_EQ(rig.source()->control.counts().open, 2);
  EXPECT_EQ(rig.source()->control.counts().aborts, 0);
}

TEST(NcclTransportTest, AGroupThatIsAboutToBeEndedIsNotOfferedForTheNextAttempt) {
  NcclRig rig("whole", 2, "whole:1");
  rig.Stage(1);
  for (int turn = 0; turn < 300; ++turn) {
    const std::vector<std::vector<int>> groups = {{0}, {1}, {0, 1}};
    ASSERT_THAT(rig.Prepare(1, groups[turn % 3], absl::Seconds(2)), IsOk());
    ASSERT_THAT(rig.Exchange(), Each(IsOk())) << "turn " << turn;
    rig.Finish();
  }
}

TEST(NcclTransportTest, ASlotThatIsTakenWhileItIsSentIsReportedWithoutLosingTheGroup) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.source()->control.Freeze(true);
  ASSERT_THAT(rig.Start(0), IsOk());
  std::jthread receiver([&] { EXPECT_THAT(rig.ReceiveOne(0), IsOk()); });
  rig.Stage(2);
  rig.source()->control.Freeze(false);
  ASSERT_TRUE(rig.done()->WaitFor(1));
  EXPECT_THAT(rig.done()->All()[0], HasReason("SUPERSEDED"));
  receiver.join();
  EXPECT_EQ(rig.source()->control.counts().aborts, 0);
}

TEST(NcclTransportTest, AdaptersAloneAreSentToReceiversThatHoldTheBase) {
  for (int replicas : {1, 2}) {
    NcclRig rig("whole", replicas, "whole:1");
    rig.SendAdaptersAlone({{{1, 2}, {3, 4}}, 77});
    rig.Stage(1);
    ASSERT_THAT(rig.Prepare(1), IsOk());
    EXPECT_THAT(rig.Exchange(), Each(IsOk()));
    for (int i = 0; i < replicas; ++i) {
      rig.ExpectArrived(i);
      EXPECT_EQ(rig.receiver(i)->arrivals.front(), 0) << "the first tensor is base";
    }
    rig.Finish();
  }
}

TEST(NcclTransportTest, AnAbortThatNeverEndsMakesEveryLaterTransferFailAtOnce) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1, {}, absl::Milliseconds(40)), IsOk());
  rig.receiver()->control.SetAbortError(Error(absl::StatusCode::kInternal, "ABORT_STUCK", "never"));
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("ABORT_STUCK"));
  rig.Finish();
  ASSERT_THAT(rig.Prepare(1), IsOk());
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("ABORT_STUCK"));
}

TEST(NcclTransportTest, MembersThatCannotMeetAreRefusedBeforeACommunicatorExists) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.receiver()->member.rendezvous = nccl::Rendezvous{22702, "GPU-r0", "", {}}.ToString();
  EXPECT_THAT(rig.Start(0), HasReason("NCCL_MISMATCH"));
  EXPECT_THAT(rig.ReceiveOne(0), HasReason("NCCL_MISMATCH"));
  EXPECT_EQ(rig.receiver()->control.counts().joins, 0);
}

TEST(NcclTransportTest, AnAttemptThatIsNotOpenIsNotStarted) {
  NcclRig rig("whole", 1, "whole:1");
  rig.Stage(1);
  ASSERT_THAT(rig.Prepare(1), IsOk());
  rig.Finish();
  EXPECT_THAT(rig.Start(0), HasReason("NOT_PREPARED"));
  Prepare other;
  other.version = {1, 7};
  EXPECT_THAT(rig.source()->transport->Open(other).status(), HasReason("VERSION_NOT_STAGED"));
}

}  // namespace
}  // namespace syncopate::synchronizer
