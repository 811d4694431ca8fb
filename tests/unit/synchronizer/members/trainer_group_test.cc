#include "synchronizer/members/trainer_group.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

TEST(TrainerGroupTest, AnEpochIsAboveWhatTheCheckpointsAndTheLedgerHold) {
  TrainerGroup group(3);
  auto admission = group.Admit(TrainerId("a"), "a", 0, 7);
  ASSERT_TRUE(admission.ok());
  EXPECT_EQ(admission->epoch, 8);
  EXPECT_TRUE(admission->raised);
}

TEST(TrainerGroupTest, TheSameProcessIsGivenTheSameEpochAgain) {
  TrainerGroup group(0);
  ASSERT_EQ(group.Admit(TrainerId("a"), "a", 0, 0)->epoch, 1);
  auto again = group.Admit(TrainerId("a"), "a", 0, 0);  // the welcome of this rank was lost
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->epoch, 1);
  EXPECT_FALSE(again->raised);
  EXPECT_FALSE(group.Admit(TrainerId("a"), "a", 1, 0)->raised);
}

TEST(TrainerGroupTest, ASecondTrainerFencesTheFirst) {
  TrainerGroup group(0);
  ASSERT_TRUE(group.Admit(TrainerId("a"), "a", 0, 0).ok());
  auto second = group.Admit(TrainerId("b"), "b", 0, 0);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->epoch, 2);
  ASSERT_EQ(second->fenced.size(), 1u);
  EXPECT_EQ(second->fenced[0], TrainerId("a"));
  EXPECT_THAT(group.Admit(TrainerId("a"), "a", 1, 0).status(), HasReason("FENCED"));
  EXPECT_FALSE(group.Contains(TrainerId("a")));
}

TEST(TrainerGroupTest, RanksOfOneStartMayArriveInAnyOrder) {
  TrainerGroup group(0);
  EXPECT_EQ(group.Admit(TrainerId("b", 1, 2), "first", 0, 0)->epoch, 1);
  EXPECT_TRUE(group.CompleteRanks().empty());
  EXPECT_EQ(group.Admit(TrainerId("a", 0, 2), "first", 0, 0)->epoch, 1);
  EXPECT_EQ(group.CompleteRanks().size(), 2u);
  // The ranks of the next start join, again in any order.
  EXPECT_EQ(group.Admit(TrainerId("d", 1, 2), "second", 0, 0)->epoch, 2);
  EXPECT_EQ(group.Admit(TrainerId("c", 0, 2), "second", 0, 0)->epoch, 2);
  EXPECT_EQ(group.CompleteRanks()[0], TrainerId("c", 0, 2));
}

TEST(TrainerGroupTest, OfTwoStartsAtTheSameTimeOneWinsWholeInWhateverOrderTheirRanksArrive) {
  std::vector<std::pair<std::string, int32_t>> arrivals = {{"x", 0}, {"x", 1}, {"x", 2}, {"y", 0}, {"y", 1}, {"y", 2}};
  int orders = 0;
  do {
    TrainerGroup group(0);
    std::map<std::string, int> welcome;
    for (const auto& [start, rank] : arrivals) {
      auto admission = group.Admit(TrainerId(start + std::to_string(rank), rank, 3), start, 0, 0);
      if (!admission.ok()) {
        ASSERT_THAT(admission.status(), HasReason("FENCED"));
        continue;
      }
      ++welcome[start];
      for (const MemberId& fenced : admission->fenced) {
        ASSERT_NE(fenced.incarnation.substr(0, 1), start);
        --welcome[fenced.incarnation.substr(0, 1)];
      }
    }
    const std::vector<MemberId> ranks = group.CompleteRanks();
    ASSERT_EQ(ranks.size(), 3u);
    const std::string winner = ranks[0].incarnation.substr(0, 1);
    EXPECT_EQ(winner, arrivals[0].first == "x" ? "y" : "x") << "the start whose hello arrived last";
    EXPECT_EQ(welcome[winner], 3);
    EXPECT_EQ(welcome[winner == "x" ? "y" : "x"], 0);
    for (const MemberId& rank : ranks) EXPECT_EQ(rank.incarnation.substr(0, 1), winner);
    ++orders;
  } while (std::next_permutation(arrivals.begin(), arrivals.end()));
  EXPECT_EQ(orders, 720);
}

TEST(TrainerGroupTest, ARankOfAStartIsNotReplacedAlone) {
  TrainerGroup group(0);
  ASSERT_TRUE(group.Admit(TrainerId("a", 0, 2), "first", 0, 0).ok());
  ASSERT_TRUE(group.Admit(TrainerId("b", 1, 2), "first", 0, 0).ok());
  group.Remove(TrainerId("b", 1, 2));
  EXPECT_THAT(group.Admit(TrainerId("c", 1, 2), "first", 0, 0).status(), HasReason("FENCED"));
  EXPECT_TRUE(group.Contains(TrainerId("a", 0, 2)));
}

TEST(TrainerGroupTest, AStartThatARestartHasCaughtHalfwayGoesOn) {
  TrainerGroup restarted(4);
  ASSERT_EQ(restarted.Admit(TrainerId("a", 0, 2), "first", 4, 0)->epoch, 4);
  EXPECT_EQ(restarted.Admit(TrainerId("b", 1, 2), "first", 0, 0)->epoch, 4) << "the start had not been welcomed yet";
  EXPECT_EQ(restarted.CompleteRanks().size(), 2u);
}

TEST(TrainerGroupTest, AfterARestartRunningRanksComeBackByTheirEpochAndAStartGetsANewOne) {
  TrainerGroup restarted(4);
  auto back = restarted.Admit(TrainerId("a"), "a", 4, 3);
  ASSERT_TRUE(back.ok());
  EXPECT_FALSE(back->raised);
  TrainerGroup again(4);
  EXPECT_EQ(again.Admit(TrainerId("b"), "b", 0, 3)->epoch, 5);
  EXPECT_THAT(again.Admit(TrainerId("a"), "a", 4, 3).status(), HasReason("FENCED"));
}

TEST(TrainerGroupTest, AdoptsTheEpochOfARunningTrainerIfItsOwnStateWasLost) {
  TrainerGroup group(0);
  auto admission = group.Admit(TrainerId("a"), "a", 6, 6);
  ASSERT_TRUE(admission.ok());
  EXPECT_EQ(admission->epoch, 6);
  EXPECT_TRUE(admission->raised);
}

TEST(TrainerGroupTest, ThePlaceOfADeadRankIsNotFilledByAnotherStart) {
  TrainerGroup group(0);
  ASSERT_TRUE(group.Admit(TrainerId("a"), "a", 0, 0).ok());
  group.Remove(TrainerId("a"));
  EXPECT_TRUE(group.CompleteRanks().empty());
  EXPECT_EQ(group.Admit(TrainerId("b"), "b", 0, 0)->epoch, 2);
}

}  // namespace
}  // namespace syncopate::synchronizer
