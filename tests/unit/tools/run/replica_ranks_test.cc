#include "tools/run/replica_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>

namespace syncopate::run {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Action = ReplicaRanks::Action;
using Kind = Action::Kind;

constexpr ChildExit kWell{false, 0}, kInterruptedExit{false, 143}, kLost{false, 4}, kRefused{false, 2};
constexpr ChildExit kKilled{true, SIGKILL};
const absl::Time kStart = absl::UnixEpoch();

class ReplicaRanksTest : public ::testing::Test {
 protected:
  void StartAll() {
    ASSERT_THAT(ranks_.Start(), ElementsAre(Action{Kind::kStart, 0}));
    ASSERT_THAT(ranks_.OnListening(), ElementsAre(Action{Kind::kStart, 1}, Action{Kind::kStart, 2}));
  }

  ReplicaRanks ranks_{
      {.ranks = 3, .grace = absl::Seconds(20), .stop_margin = absl::Seconds(3), .lost_grace = absl::Seconds(3)}};
};

TEST_F(ReplicaRanksTest, TheOthersStartOnceRank0Listens) {
  EXPECT_THAT(ranks_.Start(), ElementsAre(Action{Kind::kStart, 0}));
  EXPECT_TRUE(ranks_.is_waiting());
  EXPECT_THAT(ranks_.OnListening(), ElementsAre(Action{Kind::kStart, 1}, Action{Kind::kStart, 2}));
  EXPECT_FALSE(ranks_.is_waiting());
  EXPECT_THAT(ranks_.OnListening(), IsEmpty());
  EXPECT_THAT(ranks_.OnTick(kStart + absl::Hours(1000)), IsEmpty());
  EXPECT_FALSE(ranks_.done());
}

TEST_F(ReplicaRanksTest, ARunThatIsCompleteEndsWithNothingKilled) {
  StartAll();
  for (int64_t rank : {2, 0, 1}) {
    EXPECT_FALSE(ranks_.done());
    EXPECT_THAT(ranks_.OnExit(rank, kWell, kStart), IsEmpty());
  }
  EXPECT_TRUE(ranks_.done());
  EXPECT_EQ(ranks_.exit_code(), 0);
}

TEST_F(ReplicaRanksTest, ARequestToStopIsRank0sToFollowAndItsCodeIsTheWholes) {
  StartAll();
  EXPECT_THAT(ranks_.OnInterrupt(kStart), ElementsAre(Action{Kind::kTerminate, 0}));
  ranks_.OnExit(1, kWell, kStart + absl::Seconds(9));
  ranks_.OnExit(0, kInterruptedExit, kStart + absl::Seconds(10));
  EXPECT_THAT(ranks_.OnTick(kStart + absl::Seconds(22)), IsEmpty());
  ranks_.OnExit(2, kWell, kStart + absl::Seconds(22));
  EXPECT_TRUE(ranks_.done());
  EXPECT_EQ(ranks_.exit_code(), 143);
}

TEST_F(ReplicaRanksTest, ARankThatIsLateToStopIsKilledAfterTheGraceAndASecondRequestKillsAtOnce) {
  StartAll();
  ranks_.OnInterrupt(kStart);
  EXPECT_THAT(ranks_.OnTick(kStart + absl::Seconds(22.9)), IsEmpty());
  EXPECT_THAT(ranks_.OnTick(kStart + absl::Seconds(23)),
              ElementsAre(Action{Kind::kKill, 0}, Action{Kind::kKill, 1}, Action{Kind::kKill, 2}));
  for (int64_t rank : {0, 1, 2}) ranks_.OnExit(rank, kKilled, kStart + absl::Seconds(23));
  EXPECT_TRUE(ranks_.done());
  EXPECT_EQ(ranks_.exit_code(), 1);

  ReplicaRanks twice({.ranks = 2});
  twice.Start();
  twice.OnListening();
  twice.OnInterrupt(kStart);
  EXPECT_THAT(twice.OnInterrupt(kStart), ElementsAre(Action{Kind::kKill, 0}, Action{Kind::kKill, 1}));
}

// A silent rank is detected after 5 to 7 seconds.
TEST_F(ReplicaRanksTest, ALostRankIsTheEndOfAllWithin3SecondsOfTheFirstToNotice) {
  for (int64_t lost : {0, 1}) {
    ReplicaRanks ranks({.ranks = 3});
    ranks.Start();
    ranks.OnListening();
    EXPECT_THAT(ranks.OnExit(lost, kKilled, kStart), IsEmpty()) << "the other ranks notice the loss by themselves";
    ranks.OnExit(1 - lost, kLost, kStart + absl::Seconds(1));
    EXPECT_THAT(ranks.OnTick(kStart + absl::Seconds(2.9)), IsEmpty());
    EXPECT_THAT(ranks.OnTick(kStart + absl::Seconds(3)), ElementsAre(Action{Kind::kKill, 2})) << "the rank is stopped";
    ranks.OnExit(2, kKilled, kStart + absl::Seconds(3));
    EXPECT_TRUE(ranks.done());
    EXPECT_EQ(ranks.exit_code(), 4);
  }
}

TEST_F(ReplicaRanksTest, WhatNoOtherStartMendsIsSaidWhicheverRankEndsFirst) {
  StartAll();
  ranks_.OnExit(0, kLost, kStart);
  ranks_.OnExit(1, kRefused, kStart);
  ranks_.OnExit(2, kLost, kStart);
  EXPECT_TRUE(ranks_.done());
  EXPECT_EQ(ranks_.exit_code(), 2);
}

TEST_F(ReplicaRanksTest, Rank0ThatEndsBeforeItListensIsTheEnd) {
  ranks_.Start();
  ranks_.OnExit(0, kRefused, kStart);
  EXPECT_TRUE(ranks_.done());
  EXPECT_EQ(ranks_.exit_code(), 2);
  EXPECT_THAT(ranks_.OnListening(), IsEmpty());
}

TEST_F(ReplicaRanksTest, ARequestToStopBeforeRank0ListensStartsNobodyElse) {
  ranks_.Start();
  EXPECT_THAT(ranks_.OnInterrupt(kStart), ElementsAre(Action{Kind::kTerminate, 0}));
  EXPECT_THAT(ranks_.OnListening(), IsEmpty());
  ranks_.OnExit(0, kInterruptedExit, kStart);
  EXPECT_TRUE(ranks_.done());
  EXPECT_EQ(ranks_.exit_code(), 143);
}

}  // namespace
}  // namespace syncopate::run
