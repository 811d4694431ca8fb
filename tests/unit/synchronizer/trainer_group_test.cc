#include "synchronizer/members/trainer_group.h"

#include "gtest/gtest.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

TEST(TrainerGroupTest, AnEpochIsAboveWhatTheCheckpointsAndTheLedgerHold) {
  TrainerGroup group(3);
  auto admission = group.Admit(TrainerId("a"), 0, 7);
  ASSERT_TRUE(admission.ok());
  EXPECT_EQ(admission->epoch, 8);
  EXPECT_TRUE(admission->raised);
}

TEST(TrainerGroupTest, TheSameProcessIsGivenTheSameEpochAgain) {
  TrainerGroup group(0);
  ASSERT_EQ(group.Admit(TrainerId("a"), 0, 0)->epoch, 1);
  auto again = group.Admit(TrainerId("a"), 0, 0);  // its welcome was lost
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->epoch, 1);
  EXPECT_FALSE(again->raised);
  EXPECT_FALSE(group.Admit(TrainerId("a"), 1, 0)->raised);
}

TEST(TrainerGroupTest, ASecondTrainerFencesTheFirst) {
  TrainerGroup group(0);
  ASSERT_TRUE(group.Admit(TrainerId("a"), 0, 0).ok());
  auto second = group.Admit(TrainerId("b"), 0, 0);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->epoch, 2);
  ASSERT_EQ(second->fenced.size(), 1u);
  EXPECT_EQ(second->fenced[0], TrainerId("a"));
  EXPECT_THAT(group.Admit(TrainerId("a"), 1, 0).status(), HasReason("FENCED"));
  EXPECT_FALSE(group.Contains(TrainerId("a")));
}

TEST(TrainerGroupTest, RanksOfOneStartMayArriveInAnyOrder) {
  TrainerGroup group(0);
  EXPECT_EQ(group.Admit(TrainerId("b", 1, 2), 0, 0)->epoch, 1);
  EXPECT_TRUE(group.CompleteRanks().empty());
  EXPECT_EQ(group.Admit(TrainerId("a", 0, 2), 0, 0)->epoch, 1);
  EXPECT_EQ(group.CompleteRanks().size(), 2u);
  // The next start, again in any order.
  EXPECT_EQ(group.Admit(TrainerId("d", 1, 2), 0, 0)->epoch, 2);
  EXPECT_EQ(group.Admit(TrainerId("c", 0, 2), 0, 0)->epoch, 2);
  EXPECT_EQ(group.CompleteRanks()[0], TrainerId("c", 0, 2));
}

TEST(TrainerGroupTest, AfterARestartRunningRanksComeBackByTheirEpochAndAStartGetsANewOne) {
  TrainerGroup restarted(4);
  auto back = restarted.Admit(TrainerId("a"), 4, 3);
  ASSERT_TRUE(back.ok());
  EXPECT_FALSE(back->raised);
  TrainerGroup again(4);
  EXPECT_EQ(again.Admit(TrainerId("b"), 0, 3)->epoch, 5);
  EXPECT_THAT(again.Admit(TrainerId("a"), 4, 3).status(), HasReason("FENCED"));
}

TEST(TrainerGroupTest, AdoptsTheEpochOfARunningTrainerIfItsOwnStateWasLost) {
  TrainerGroup group(0);
  auto admission = group.Admit(TrainerId("a"), 6, 6);
  ASSERT_TRUE(admission.ok());
  EXPECT_EQ(admission->epoch, 6);
  EXPECT_TRUE(admission->raised);
}

TEST(TrainerGroupTest, ThePlaceOfADeadRankIsNotFilledByAnotherStart) {
  TrainerGroup group(0);
  ASSERT_TRUE(group.Admit(TrainerId("a"), 0, 0).ok());
  group.Remove(TrainerId("a"));
  EXPECT_TRUE(group.CompleteRanks().empty());
  EXPECT_EQ(group.Admit(TrainerId("b"), 0, 0)->epoch, 2);
}

}  // namespace
}  // namespace syncopate::synchronizer
