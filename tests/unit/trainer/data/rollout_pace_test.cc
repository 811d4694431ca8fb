#include "trainer/data/rollout_pace.h"

#include <gtest/gtest.h>

namespace syncopate::trainer {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(RolloutPaceTest, ARollouterIsAsSlowAsTheAgeOfItsOldestLease) {
  RolloutPace pace;
  EXPECT_EQ(pace.Pace(absl::Seconds(3), At(0)), absl::Seconds(3));
  pace.OnLeased(At(0));
  EXPECT_EQ(pace.Pace(absl::Seconds(3), At(2)), absl::Seconds(3));
  EXPECT_EQ(pace.Pace(absl::Seconds(3), At(12)), absl::Seconds(12));
  EXPECT_FALSE(pace.IsSlow(kPatience, At(20)));
  EXPECT_TRUE(pace.IsSlow(kPatience, At(21)));
  pace.OnEnded(At(0));
  EXPECT_FALSE(pace.IsSlow(kPatience, At(21)));
}

// In a turn of the trainer a rollouter can answer nothing.
TEST(RolloutPaceTest, ATurnInWhichARollouterIsAwayIsNoTimeOfIts) {
  RolloutPace pace;
  pace.OnLeased(At(0));
  pace.SetAway(true, At(5));
  pace.SetAway(true, At(6));  // as it is
  EXPECT_EQ(pace.Pace(absl::Seconds(3), At(105)), absl::Seconds(5));
  EXPECT_FALSE(pace.IsSlow(kPatience, At(105)));
  pace.SetAway(false, At(105));
  EXPECT_EQ(pace.Pace(absl::Seconds(3), At(107)), absl::Seconds(7));
  EXPECT_FALSE(pace.IsSlow(kPatience, At(120)));
  EXPECT_TRUE(pace.IsSlow(kPatience, At(121)));
  pace.OnAccepted(absl::Seconds(4), kPatience, At(121));
  EXPECT_FALSE(pace.IsSlow(kPatience, At(140)));
  pace.OnEnded(At(0));
  pace.OnLeased(At(150));
  EXPECT_FALSE(pace.IsSlow(kPatience, At(170)));
  EXPECT_TRUE(pace.IsSlow(kPatience, At(171)));
}

TEST(RolloutPaceTest, APauseBeforeATrialIsOfTheTimeInWhichTheRollouterIsThere) {
  RolloutPace pace;
  pace.OnLeased(At(0));
  pace.OnEnded(At(0));
  pace.SetAway(true, At(100));
  pace.SetAway(false, At(1000));
  EXPECT_FALSE(pace.IsTrialDue(kPatience, At(1099)));
  EXPECT_TRUE(pace.IsTrialDue(kPatience, At(1100)));
}

}  // namespace
}  // namespace syncopate::trainer
