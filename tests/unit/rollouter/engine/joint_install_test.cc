#include "rollouter/engine/joint_install.h"

#include <gtest/gtest.h>

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
  EXPECT_TRUE(joint.Withdraw(1, kFirst));  // also one that was never ready
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

}  // namespace
}  // namespace syncopate::rollouter
