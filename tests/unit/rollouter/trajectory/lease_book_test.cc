#include "rollouter/trajectory/lease_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

namespace syncopate::rollouter {
namespace {

using Ended = LeaseBook::Ended;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Lease GetLease(int64_t ordinal, int32_t samples = 4, int32_t attempt = 1) {
  Lease lease;
  lease.id = {{0, ordinal}, attempt};
  lease.samples = samples;
  return lease;
}

class LeaseBookTest : public ::testing::Test {
 protected:
  LeaseBookTest() { Connect(); }
  void Connect() {
    stream_ = book_.OnConnecting();
    book_.OnWelcome();
  }
  absl::Status Take(const Lease& lease) {
    made_[lease.id] = std::make_shared<TokenCount>(0);
    return book_.OnLease(lease, made_[lease.id]);
  }
  void Make(int64_t ordinal) { ++*made_.at(GetLease(ordinal).id); }
  std::vector<int64_t> Progress(int64_t engine_tokens) {
    std::vector<int64_t> ordinals;
    for (const LeaseId& lease : book_.TakeProgress(engine_tokens)) ordinals.push_back(lease.group.ordinal);
    return ordinals;
  }

  std::map<LeaseId, std::shared_ptr<TokenCount>> made_;
  LeaseBook book_{{.max_groups = 3, .samples_per_group = 4}};
  int64_t stream_ = 0;
};

TEST_F(LeaseBookTest, AsksForAsMuchAsItHasRoomFor) {
  EXPECT_EQ(book_.Credits(), 3);
  EXPECT_TRUE(Take(GetLease(1)).ok());
  EXPECT_TRUE(Take(GetLease(2)).ok());
  EXPECT_EQ(book_.Credits(), 1);
  EXPECT_EQ(book_.OnEnded(stream_, GetLease(1).id, true), Ended::kHeld);
  EXPECT_EQ(book_.Credits(), 2);
}

TEST_F(LeaseBookTest, CountsEvaluationBySamplesAndNeverAsksForLessThanNothing) {
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Take(GetLease(i, 1)).ok());
  EXPECT_EQ(book_.Credits(), 1);
  for (int i = 5; i < 50; ++i) EXPECT_TRUE(Take(GetLease(i, 1)).ok());
  EXPECT_EQ(book_.Credits(), 0);
}

TEST(LeaseBookParkedTest, SamplesThatWaitForAnEnvironmentTakeNoRoomUpToALimit) {
  LeaseBook book({.max_groups = 3, .samples_per_group = 4, .max_parked = 6});
  book.OnConnecting();
  book.OnWelcome();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(book.OnLease(GetLease(i), std::make_shared<TokenCount>(0)).ok());
  EXPECT_EQ(book.Credits(), 0);
  book.SetParked(3);
  EXPECT_EQ(book.Credits(), 0) << "no room for a whole group";
  book.SetParked(4);
  EXPECT_EQ(book.Credits(), 1);
  book.SetParked(12);
  EXPECT_EQ(book.Credits(), 1) << "6 of them count as parked";
  book.SetParked(0);
  EXPECT_EQ(book.Credits(), 0);
}

TEST_F(LeaseBookTest, GivesUpWhatItHasNotFinishedAndStillExpectsTheAnswersToWhatItHas) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  EXPECT_TRUE(Take(GetLease(2)).ok());
  EXPECT_EQ(book_.OnEnded(stream_, GetLease(2).id, true), Ended::kHeld);
  EXPECT_EQ(book_.GiveUp(), std::vector<LeaseId>{GetLease(1).id});
  EXPECT_EQ(book_.OnEnded(stream_, GetLease(1).id, true), Ended::kGivenUp) << "the result of the lease comes too late";
  EXPECT_TRUE(book_.welcomed());
  EXPECT_FALSE(book_.idle());
  book_.OnAck(GetLease(2).id);
  EXPECT_TRUE(book_.idle());
  EXPECT_TRUE(book_.GiveUp().empty());
}

TEST_F(LeaseBookTest, GivesUpEveryLeaseOfAStreamThatBroke) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  EXPECT_TRUE(Take(GetLease(2)).ok());
  EXPECT_EQ(book_.OnEnded(stream_, GetLease(2).id, true), Ended::kHeld);
  EXPECT_EQ(book_.OnDisconnected(), std::vector<LeaseId>{GetLease(1).id});
  EXPECT_TRUE(book_.idle());
  EXPECT_FALSE(book_.welcomed());
  EXPECT_EQ(book_.OnEnded(stream_, GetLease(1).id, false), Ended::kGivenUp);
}

TEST_F(LeaseBookTest, DoesNotTakeAnOldStreamsResultForTheSameLeaseOfANewOne) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  int64_t old = stream_;
  book_.OnDisconnected();
  Connect();
  EXPECT_TRUE(Take(GetLease(1)).ok());  // a restored trainer counts attempts anew
  EXPECT_EQ(book_.OnEnded(old, GetLease(1).id, true), Ended::kGivenUp);
  EXPECT_EQ(book_.generating(), 1);
  EXPECT_EQ(book_.OnEnded(stream_, GetLease(1).id, true), Ended::kHeld);
}

TEST_F(LeaseBookTest, ALeaseComesFurtherByItsOwnTokensOrWhileItWaitsByAnybodys) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  EXPECT_TRUE(Take(GetLease(2)).ok());
  EXPECT_THAT(Progress(0), IsEmpty()) << "the engine has done nothing";
  EXPECT_THAT(Progress(6), ElementsAre(1, 2)) << "prompts are prefilled";
  EXPECT_THAT(Progress(6), IsEmpty());
  Make(1);
  EXPECT_THAT(Progress(7), ElementsAre(1, 2)) << "one has a token, the other waits its turn";
  EXPECT_THAT(Progress(8), ElementsAre(2)) << "a token of another lease does not count for a lease that has begun";
  Make(2);
  Make(2);
  EXPECT_THAT(Progress(10), ElementsAre(2));
  EXPECT_THAT(Progress(20), IsEmpty());
  EXPECT_TRUE(book_.OnRevoke(GetLease(1).id));
  Make(1);
  EXPECT_THAT(Progress(21), IsEmpty()) << "the lease is not held any more";
}

TEST_F(LeaseBookTest, AsksForNothingWhilePausedAndKeepsWhatItHas) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  book_.SetPaused(true);
  EXPECT_EQ(book_.Credits(), 0);
  EXPECT_TRUE(Take(GetLease(2)).ok()) << "it was on its way";
  book_.SetPaused(false);
  EXPECT_EQ(book_.Credits(), 1);
}

TEST_F(LeaseBookTest, ScoringIsProgressAndTakesRoom) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  Make(1);
  EXPECT_THAT(Progress(6), ElementsAre(1));
  EXPECT_THAT(Progress(6), IsEmpty());
  EXPECT_TRUE(book_.OnScoring(stream_, GetLease(1).id));
  EXPECT_THAT(Progress(6), ElementsAre(1));
  EXPECT_THAT(Progress(6), ElementsAre(1)) << "its calls have budgets of their own";
  EXPECT_EQ(book_.Credits(), 2);
  EXPECT_EQ(book_.OnEnded(stream_, GetLease(1).id, true), Ended::kHeld);
  EXPECT_EQ(book_.Credits(), 3);
}

TEST_F(LeaseBookTest, NobodyWantsRewardsOfWhatWasRevokedOrLost) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  EXPECT_TRUE(book_.OnRevoke(GetLease(1).id));
  EXPECT_FALSE(book_.OnScoring(stream_, GetLease(1).id));
  EXPECT_TRUE(Take(GetLease(2)).ok());
  const int64_t old = stream_;
  Connect();
  EXPECT_FALSE(book_.OnScoring(old, GetLease(2).id));
}

TEST_F(LeaseBookTest, AsksForNothingWhileTheScorerIsAway) {
  book_.SetScorerAway(true);
  EXPECT_EQ(book_.Credits(), 0);
  EXPECT_TRUE(Take(GetLease(1)).ok()) << "it was on its way";
  book_.SetScorerAway(false);
  EXPECT_EQ(book_.Credits(), 2);
}

TEST_F(LeaseBookTest, WhatWasGivenUpTakesRoomUntilItHasEnded) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  EXPECT_TRUE(Take(GetLease(2)).ok());
  EXPECT_TRUE(book_.OnRevoke(GetLease(1).id));
  EXPECT_EQ(book_.Credits(), 1) << "an engine that does not move does not end it either";
  const int64_t old = stream_;
  book_.OnDisconnected();
  EXPECT_TRUE(book_.idle());
  Connect();
  EXPECT_EQ(book_.Credits(), 1);
  EXPECT_EQ(book_.OnEnded(old, GetLease(1).id, false), Ended::kGivenUp) << "that stream is gone";
  EXPECT_EQ(book_.OnEnded(old, GetLease(2).id, false), Ended::kGivenUp);
  EXPECT_EQ(book_.Credits(), 3);
}

TEST_F(LeaseBookTest, SaysWhenARevokedLeaseHasEndedAndAbortsItOnlyWhileItIsGenerated) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  EXPECT_TRUE(book_.OnRevoke(GetLease(1).id));
  EXPECT_EQ(book_.OnEnded(stream_, GetLease(1).id, true), Ended::kRevoked);
  EXPECT_FALSE(book_.OnRevoke(GetLease(1).id));
  EXPECT_EQ(book_.Credits(), 3);
}

TEST_F(LeaseBookTest, RefusesTheSameLeaseTwice) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  EXPECT_EQ(ErrorReason(Take(GetLease(1))), "LEASE_HELD");
  EXPECT_TRUE(Take(GetLease(1, 4, 2)).ok());
}

TEST_F(LeaseBookTest, AsksForNothingWhileDrainingAndFinishesWhatItHas) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  book_.SetDraining(true);
  EXPECT_EQ(book_.Credits(), 0);
  EXPECT_EQ(ErrorReason(Take(GetLease(2))), "DRAINING");
  EXPECT_EQ(book_.OnEnded(stream_, GetLease(1).id, true), Ended::kHeld);
  EXPECT_FALSE(book_.idle());  // the group is not acknowledged yet
  book_.OnAck(GetLease(1).id);
  EXPECT_TRUE(book_.idle());
  book_.SetDraining(false);
  EXPECT_EQ(book_.Credits(), 3);
}

TEST_F(LeaseBookTest, AsksForNothingAndTakesNothingAsleep) {
  book_.SetAsleep(true);
  EXPECT_EQ(book_.Credits(), 0);
  EXPECT_EQ(ErrorReason(Take(GetLease(1))), "ASLEEP");
  EXPECT_TRUE(book_.idle());
  book_.SetAsleep(false);
  EXPECT_EQ(book_.Credits(), 3);
}

TEST_F(LeaseBookTest, ExpectsNoAcknowledgementForWhatItHandedBack) {
  EXPECT_TRUE(Take(GetLease(1)).ok());
  EXPECT_EQ(book_.OnEnded(stream_, GetLease(1).id, false), Ended::kHeld);
  EXPECT_TRUE(book_.idle());
}

TEST(LeaseBookOptionsTest, MustBePositive) {
  EXPECT_TRUE(LeaseBook::Options().Validate().ok());
  EXPECT_EQ(ErrorReason((LeaseBook::Options{.max_groups = 0}).Validate()), "BAD_OPTIONS");
  EXPECT_EQ(ErrorReason((LeaseBook::Options{.samples_per_group = -1}).Validate()), "BAD_OPTIONS");
}

}  // namespace
}  // namespace syncopate::rollouter
