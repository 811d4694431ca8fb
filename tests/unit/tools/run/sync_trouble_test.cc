#include "tools/run/sync_trouble.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncopate::run {
namespace {

using synchronizer::SyncOutcome;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SyncTroubleTest : public ::testing::Test {
 protected:
  void Sync(const std::string& replica, SyncOutcome outcome, double seconds) {
    trouble_.Note(replica, outcome, "DUPLICATE_GPU: two members sit on one GPU", start_ + absl::Seconds(seconds));
  }

  const absl::Time start_ = absl::FromUnixSeconds(1000);
  SyncTrouble trouble_;
};

TEST_F(SyncTroubleTest, ThreeFailuresInARowOverTenSecondsAreOne) {
  Sync("rollouter-1", SyncOutcome::kFailed, 0);
  Sync("rollouter-1", SyncOutcome::kFailed, 6);
  EXPECT_EQ(trouble_.Alarm(), "") << "two";
  Sync("rollouter-1", SyncOutcome::kFailed, 9);
  EXPECT_EQ(trouble_.Alarm(), "") << "nine seconds";
  Sync("rollouter-1", SyncOutcome::kFailed, 11);
  EXPECT_THAT(trouble_.Alarm(),
              AllOf(HasSubstr("rollouter-1"), HasSubstr("4 weight syncs"), HasSubstr("DUPLICATE_GPU")));
}

TEST_F(SyncTroubleTest, OneThatEndsWellEndsItAndTheCountBeginsAnew) {
  for (double seconds : {0, 10, 20}) Sync("rollouter-0", SyncOutcome::kFailed, seconds);
  ASSERT_NE(trouble_.Alarm(), "");
  Sync("rollouter-0", SyncOutcome::kRelabelled, 21);
  EXPECT_EQ(trouble_.Alarm(), "");
  for (double seconds : {22, 40}) Sync("rollouter-0", SyncOutcome::kFailed, seconds);
  EXPECT_EQ(trouble_.Alarm(), "");
}

TEST_F(SyncTroubleTest, WhatSaysNothingAboutTheReceiverChangesNothing) {
  for (double seconds : {0, 10, 20}) Sync("rollouter-0", SyncOutcome::kFailed, seconds);
  for (SyncOutcome outcome : {SyncOutcome::kSuperseded, SyncOutcome::kRehearsed, SyncOutcome::kHeld}) {
    Sync("rollouter-0", outcome, 21);
    Sync("rollouter-1", outcome, 21);
  }
  EXPECT_THAT(trouble_.Alarm(), AllOf(HasSubstr("rollouter-0"), HasSubstr("3 weight syncs")));
}

TEST_F(SyncTroubleTest, SuccessesOfAnotherRollouterDoNotHideIt) {
  for (double seconds : {0, 10, 20}) {
    Sync("rollouter-0", SyncOutcome::kDone, seconds);
    Sync("rollouter-1", SyncOutcome::kFailed, seconds);
  }
  EXPECT_THAT(trouble_.Alarm(), HasSubstr("rollouter-1"));
}

TEST_F(SyncTroubleTest, AReplicaThatHasEndedIsForgotten) {
  for (double seconds : {0, 10, 20}) Sync("rollouter-1", SyncOutcome::kFailed, seconds);
  trouble_.KeepOnly({"rollouter-0", "rollouter-1"});
  EXPECT_NE(trouble_.Alarm(), "");
  trouble_.KeepOnly({"rollouter-0"});
  EXPECT_EQ(trouble_.Alarm(), "");
}

}  // namespace
}  // namespace syncopate::run
