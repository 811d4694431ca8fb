#include "synchronizer/loop/completion_linger.h"

#include <gtest/gtest.h>

namespace syncopate::synchronizer {
namespace {

const CompletionLinger::Options kOptions = {
    .shortest = absl::Seconds(5), .longest = absl::Seconds(10), .after_restart = absl::Minutes(2)};
const absl::Time kStart = absl::UnixEpoch();

TEST(CompletionLingerTest, StaysWhileTheRunGoesOn) {
  CompletionLinger linger(kOptions, /*completed_at_start=*/false);
  EXPECT_FALSE(linger.MayEnd(false, 0, kStart));
  EXPECT_FALSE(linger.MayEnd(false, 0, kStart + absl::Hours(100)));
}

TEST(CompletionLingerTest, GoesWhenEverybodyHasGoneButNotBeforeLostMembersCouldComeBack) {
  CompletionLinger linger(kOptions, false);
  EXPECT_FALSE(linger.MayEnd(true, 2, kStart));
  EXPECT_FALSE(linger.MayEnd(true, 0, kStart + absl::Seconds(1)));
  EXPECT_FALSE(linger.MayEnd(true, 1, kStart + absl::Seconds(5)));
  EXPECT_TRUE(linger.MayEnd(true, 0, kStart + absl::Seconds(6)));
}

TEST(CompletionLingerTest, DoesNotWaitForEverForMembersThatStay) {
  CompletionLinger linger(kOptions, false);
  EXPECT_FALSE(linger.MayEnd(true, 3, kStart));
  EXPECT_FALSE(linger.MayEnd(true, 3, kStart + absl::Seconds(9)));
  EXPECT_TRUE(linger.MayEnd(true, 3, kStart + absl::Seconds(10)));
}

TEST(CompletionLingerTest, StartedOnACompleteRunItGivesATrainerTimeToContinueIt) {
  CompletionLinger linger(kOptions, /*completed_at_start=*/true);
  EXPECT_FALSE(linger.MayEnd(true, 0, kStart));
  EXPECT_FALSE(linger.MayEnd(true, 0, kStart + absl::Seconds(119)));
  EXPECT_TRUE(linger.MayEnd(true, 0, kStart + absl::Seconds(120)));
}

TEST(CompletionLingerTest, AContinuedRunThatEndsAgainIsLikeANewOne) {
  CompletionLinger linger(kOptions, true);
  EXPECT_FALSE(linger.MayEnd(true, 0, kStart));
  EXPECT_FALSE(linger.MayEnd(false, 1, kStart + absl::Seconds(60)));
  EXPECT_FALSE(linger.MayEnd(true, 0, kStart + absl::Seconds(200)));
  EXPECT_TRUE(linger.MayEnd(true, 0, kStart + absl::Seconds(205)));
}

}  // namespace
}  // namespace syncopate::synchronizer
