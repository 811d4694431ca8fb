#include "tools/run/reward_trouble.h"

#include <gtest/gtest.h>

namespace syncopate::run {
namespace {

TEST(RewardTroubleTest, ARollouterWithoutRewardsIsNamedWhenThatLasts) {
  v1::TrainerServiceGetStatusResponse without, with;
  without.add_rollouters()->set_replica_id("rollouter-0");
  with.add_rollouters()->set_replica_id("rollouter-0");
  auto* second = without.add_rollouters();
  second->set_replica_id("rollouter-1");
  second->set_no_rewards("the worker runs other code");
  RewardTrouble trouble;
  absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_EQ(trouble.Alarm(without, now), "");
  EXPECT_EQ(trouble.Alarm(with, now += absl::Seconds(4)), "");
  EXPECT_EQ(trouble.Alarm(without, now += absl::Seconds(2)), "") << "the worker was available in between";
  EXPECT_EQ(trouble.Alarm(without, now += absl::Seconds(5)),
            "rollouter-1 asks for no work: the worker runs other code");
  EXPECT_EQ(trouble.Alarm(with, now), "");
}

TEST(RewardTroubleTest, FailuresStandAsLongAsTheTrainerSaysSo) {
  v1::TrainerServiceGetStatusResponse status;
  status.mutable_reward_failures()->set_failed(3);
  RewardTrouble trouble;
  EXPECT_EQ(trouble.Alarm(status, absl::UnixEpoch()), "");
  status.mutable_reward_failures()->set_recent_failed(40);
  status.mutable_reward_failures()->set_recent(64);
  status.mutable_reward_failures()->set_last("TypeError: no");
  status.mutable_reward_failures()->set_alarm(true);
  EXPECT_EQ(trouble.Alarm(status, absl::UnixEpoch()),
            "40 of the last 64 groups got no reward, the last: TypeError: no");
}

}  // namespace
}  // namespace syncopate::run
