#include "rollouter/engine/joint_install.h"

#include <gtest/gtest.h>

#include <vector>

#include "rollouter/engine/joint_pause.h"
#include "tests/support/dice.h"

namespace syncopate::rollouter {
namespace {

const PolicyVersion kFirst{1, 1}, kSecond{1, 2};

TEST(JointInstallTest, AVersionMayBeInstalledWhenAllOtherRanksAreReadyForIt) {
  JointInstall joint(3);
  EXPECT_FALSE(joint.AllReady(kFirst));
  joint.Ready(1, kFirst);
  joint.Ready(1, kFirst);
  EXPECT_FALSE(joint.AllReady(kFirst));
  joint.Ready(2, kFirst);
  EXPECT_TRUE(joint.AllReady(kFirst));
  EXPECT_FALSE(joint.AllReady(kSecond));
}

TEST(JointInstallTest, ARankThatWithdrawsInTimeIsReleasedAtOnce) {
  JointInstall joint(2);
  EXPECT_TRUE(joint.Withdraw(1, kFirst));  // an attempt that was never ready can be withdrawn, too
  joint.Ready(1, kFirst);
  EXPECT_TRUE(joint.Withdraw(1, kFirst));
  EXPECT_FALSE(joint.AllReady(kFirst));
}

TEST(JointInstallTest, OnceAVersionIsClaimedARankIsAnsweredWhenThatIsSettled) {
  JointInstall joint(2);
  joint.Ready(1, kFirst);
  joint.Claim(kFirst);
  EXPECT_FALSE(joint.Withdraw(1, kFirst));
  joint.EndClaim(kFirst);
  EXPECT_FALSE(joint.AllReady(kFirst));
  EXPECT_TRUE(joint.Withdraw(1, kFirst));
}

TEST(JointInstallTest, ARankIsReadyForOneVersionAtATime) {
  JointInstall joint(2);
  joint.Ready(1, kFirst);
  joint.Ready(1, kSecond);
  EXPECT_FALSE(joint.AllReady(kFirst));
  EXPECT_TRUE(joint.AllReady(kSecond));
  joint.EndClaim(kSecond);
  EXPECT_FALSE(joint.AllReady(kSecond));
}

using Outcome = JointPause::Outcome;

TEST(JointPauseTest, OneRankThatHasOverwrittenLosesTheWeightsOfAll) {
  JointPause pause(3);
  pause.Begin(kFirst);
  EXPECT_EQ(pause.Stand(), Outcome::kOpen);
  EXPECT_EQ(pause.GiveUp(2, kFirst, /*overwritten=*/true), Outcome::kLost);
  EXPECT_EQ(pause.GiveUp(0, kFirst, /*overwritten=*/false), Outcome::kOpen) << "the rank reported it once";
}

TEST(JointPauseTest, WhatRanksSayBeforeTheEngineStandsCountsWhenItDoes) {
  JointPause pause(2);
  pause.Begin(kFirst);
  EXPECT_EQ(pause.GiveUp(1, kFirst, /*overwritten=*/true), Outcome::kOpen);
  EXPECT_EQ(pause.Stand(), Outcome::kLost);
  pause.Begin(kFirst);
  EXPECT_EQ(pause.GiveUp(1, kFirst, /*overwritten=*/true), Outcome::kOpen);
  pause.End();  // the engine did not stop
  pause.Begin(kFirst);
  EXPECT_EQ(pause.Stand(), Outcome::kOpen) << "a new pause";
}

// Ranks receive, give up or install in any order. Generation continues exactly when no rank can write any more and none
// has written, and no later.
TEST(JointPauseTest, GenerationGoesOnlyOnWithWholeWeights) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    testing::Dice dice(seed);
    const auto world = static_cast<int32_t>(dice.Between(2, 8));
    JointPause pause(world);
    std::vector<int32_t> receiving;
    bool stands = false, torn = false, decided = false;
    auto expect = [&](Outcome outcome) {
      const bool all_over = receiving.empty();
      const Outcome due = decided || !stands || (!torn && !all_over) ? Outcome::kOpen
                          : torn                                     ? Outcome::kLost
                                                                     : Outcome::kGoOn;
      ASSERT_EQ(outcome, due) << "seed " << seed;
      decided |= outcome != Outcome::kOpen;
    };
    pause.Begin(kSecond);
    for (int32_t rank = 0; rank < world; ++rank) receiving.push_back(rank);
    const int64_t stands_after = dice.Between(0, world - 1);
    for (int64_t over = 0; !receiving.empty(); ++over) {
      if (over == stands_after) {
        stands = true;
        expect(pause.Stand());
      }
      const auto which = static_cast<size_t>(dice.Between(0, static_cast<int64_t>(receiving.size()) - 1));
      const int32_t rank = receiving[which];
      EXPECT_EQ(pause.GiveUp(rank, kFirst, true), Outcome::kOpen) << "of an earlier version";
      receiving.erase(receiving.begin() + static_cast<int64_t>(which));
      const bool overwritten = dice.Between(0, 5) == 0;
      torn |= overwritten;
      expect(pause.GiveUp(rank, kSecond, overwritten));
    }
    EXPECT_TRUE(decided);
    EXPECT_TRUE(pause.version().IsNone());
  }
}

}  // namespace
}  // namespace syncopate::rollouter
