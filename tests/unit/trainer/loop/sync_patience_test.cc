#include "trainer/loop/sync_patience.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using testing::HasReason;
using testing::IsOk;

class SyncPatienceTest : public ::testing::Test {
 protected:
  static absl::Time At(int minutes) { return absl::UnixEpoch() + absl::Minutes(minutes); }
  absl::Status Observe(int minute, int64_t ok, int64_t failed, int64_t receivers = 2) {
    return patience_.Observe({ok, failed, receivers}, At(minute));
  }

  SyncPatience patience_{absl::Minutes(10)};
};

TEST_F(SyncPatienceTest, GivesUpWhenAttemptsHaveFailedForTenMinutesAndNoneSucceeded) {
  EXPECT_THAT(Observe(0, 5, 0), IsOk());
  for (int minute = 1; minute <= 10; ++minute) EXPECT_THAT(Observe(minute, 5, minute), IsOk()) << minute;
  EXPECT_EQ(patience_.failing_since(), At(1));
  const absl::Status given_up = Observe(11, 5, 11);
  EXPECT_THAT(given_up, HasReason("SYNC_FAILING"));
  EXPECT_TRUE(absl::IsUnavailable(given_up));
  EXPECT_NE(given_up.message().find("11 failed"), std::string::npos) << given_up;
}

TEST_F(SyncPatienceTest, OneThatSucceedsBeginsItAnew) {
  EXPECT_THAT(Observe(0, 5, 0), IsOk());
  EXPECT_THAT(Observe(1, 5, 1), IsOk());
  EXPECT_THAT(Observe(9, 6, 3), IsOk()) << "one of three";
  EXPECT_EQ(patience_.failing_since(), absl::InfiniteFuture());
  EXPECT_THAT(Observe(12, 6, 4), IsOk());
  EXPECT_THAT(Observe(21, 6, 5), IsOk());
  EXPECT_THAT(Observe(22, 6, 6), HasReason("SYNC_FAILING"));
}

TEST_F(SyncPatienceTest, NoReceiversAreNoReason) {
  EXPECT_THAT(Observe(0, 0, 0, 0), IsOk());
  EXPECT_THAT(Observe(1, 0, 1), IsOk());
  EXPECT_THAT(Observe(2, 0, 1, 0), IsOk()) << "the rollouters have left";
  EXPECT_THAT(Observe(60, 0, 1, 0), IsOk());
  EXPECT_THAT(Observe(61, 0, 2), IsOk()) << "other rollouters have joined";
  EXPECT_THAT(Observe(70, 0, 3), IsOk());
  EXPECT_THAT(Observe(71, 0, 4), HasReason("SYNC_FAILING"));
}

TEST_F(SyncPatienceTest, WhileNoAttemptEndsNothingIsDecided) {
  EXPECT_THAT(Observe(0, 0, 0), IsOk());
  EXPECT_THAT(Observe(1, 0, 1), IsOk());
  for (int minute = 2; minute < 30; ++minute) EXPECT_THAT(Observe(minute, 0, 1), IsOk());
  EXPECT_THAT(Observe(30, 1, 1), IsOk());
}

TEST_F(SyncPatienceTest, WhatEndedBeforeIsNotCounted) {
  EXPECT_THAT(Observe(0, 0, 1000), IsOk());
  EXPECT_EQ(patience_.failing_since(), absl::InfiniteFuture());
}

TEST_F(SyncPatienceTest, ASynchronizerThatIsStartedAgainChangesNothing) {
  EXPECT_THAT(Observe(0, 5, 7), IsOk());
  EXPECT_THAT(Observe(1, 5, 8), IsOk());
  EXPECT_THAT(Observe(2, 0, 0), IsOk());
  EXPECT_EQ(patience_.failing_since(), At(1));
  EXPECT_THAT(Observe(11, 0, 1), HasReason("SYNC_FAILING"));
}

}  // namespace
}  // namespace syncopate::trainer
