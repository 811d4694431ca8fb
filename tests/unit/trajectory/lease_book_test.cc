#include "rollouter/trajectory/lease_book.h"

#include <gtest/gtest.h>

namespace syncopate::rollouter {
namespace {

Lease LeaseOf(int64_t ordinal, int32_t samples = 4, int32_t attempt = 1) {
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
  LeaseBook book_{{.max_groups = 3, .samples_per_group = 4}};
  int64_t stream_ = 0;
};

TEST_F(LeaseBookTest, AsksForAsMuchAsItHasRoomFor) {
  EXPECT_EQ(book_.Credits(), 3);
  EXPECT_TRUE(book_.OnLease(LeaseOf(1)).ok());
  EXPECT_TRUE(book_.OnLease(LeaseOf(2)).ok());
  EXPECT_EQ(book_.Credits(), 1);
  EXPECT_TRUE(book_.OnGenerated(stream_, LeaseOf(1).id, true));
  EXPECT_EQ(book_.Credits(), 2);
}

TEST_F(LeaseBookTest, CountsEvaluationBySamplesAndNeverAsksForLessThanNothing) {
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(book_.OnLease(LeaseOf(i, 1)).ok());
  EXPECT_EQ(book_.Credits(), 1);
  for (int i = 5; i < 50; ++i) EXPECT_TRUE(book_.OnLease(LeaseOf(i, 1)).ok());
  EXPECT_EQ(book_.Credits(), 0);
}

TEST_F(LeaseBookTest, GivesUpWhatItHasNotFinishedAndStillExpectsTheAnswersToWhatItHas) {
  EXPECT_TRUE(book_.OnLease(LeaseOf(1)).ok());
  EXPECT_TRUE(book_.OnLease(LeaseOf(2)).ok());
  EXPECT_TRUE(book_.OnGenerated(stream_, LeaseOf(2).id, true));
  EXPECT_EQ(book_.GiveUp(), std::vector<LeaseId>{LeaseOf(1).id});
  EXPECT_FALSE(book_.OnGenerated(stream_, LeaseOf(1).id, true)) << "its result comes too late";
  EXPECT_TRUE(book_.welcomed());
  EXPECT_FALSE(book_.idle());
  book_.OnAck(LeaseOf(2).id);
  EXPECT_TRUE(book_.idle());
  EXPECT_TRUE(book_.GiveUp().empty());
}

TEST_F(LeaseBookTest, GivesUpEveryLeaseOfAStreamThatBroke) {
  EXPECT_TRUE(book_.OnLease(LeaseOf(1)).ok());
  EXPECT_TRUE(book_.OnLease(LeaseOf(2)).ok());
  EXPECT_TRUE(book_.OnGenerated(stream_, LeaseOf(2).id, true));
  EXPECT_EQ(book_.OnDisconnected(), std::vector<LeaseId>{LeaseOf(1).id});
  EXPECT_TRUE(book_.idle());
  EXPECT_FALSE(book_.welcomed());
  EXPECT_FALSE(book_.OnGenerated(stream_, LeaseOf(1).id, false));
}

TEST_F(LeaseBookTest, DoesNotTakeAnOldStreamsResultForTheSameLeaseOfANewOne) {
  EXPECT_TRUE(book_.OnLease(LeaseOf(1)).ok());
  int64_t old = stream_;
  book_.OnDisconnected();
  Connect();
  EXPECT_TRUE(book_.OnLease(LeaseOf(1)).ok());  // a restored trainer counts attempts anew
  EXPECT_FALSE(book_.OnGenerated(old, LeaseOf(1).id, true));
  EXPECT_EQ(book_.generating(), 1);
  EXPECT_TRUE(book_.OnGenerated(stream_, LeaseOf(1).id, true));
}

TEST_F(LeaseBookTest, AbortsARevokedLeaseOnlyWhileItIsGenerated) {
  EXPECT_TRUE(book_.OnLease(LeaseOf(1)).ok());
  EXPECT_TRUE(book_.OnRevoke(LeaseOf(1).id));
  EXPECT_FALSE(book_.OnGenerated(stream_, LeaseOf(1).id, true));
  EXPECT_FALSE(book_.OnRevoke(LeaseOf(1).id));
  EXPECT_EQ(book_.Credits(), 3);
}

TEST_F(LeaseBookTest, RefusesTheSameLeaseTwice) {
  EXPECT_TRUE(book_.OnLease(LeaseOf(1)).ok());
  EXPECT_EQ(ErrorReason(book_.OnLease(LeaseOf(1))), "LEASE_HELD");
  EXPECT_TRUE(book_.OnLease(LeaseOf(1, 4, 2)).ok());
}

TEST_F(LeaseBookTest, AsksForNothingWhileDrainingAndFinishesWhatItHas) {
  EXPECT_TRUE(book_.OnLease(LeaseOf(1)).ok());
  book_.SetDraining(true);
  EXPECT_EQ(book_.Credits(), 0);
  EXPECT_EQ(ErrorReason(book_.OnLease(LeaseOf(2))), "DRAINING");
  EXPECT_TRUE(book_.OnGenerated(stream_, LeaseOf(1).id, true));
  EXPECT_FALSE(book_.idle());  // until it is acknowledged
  book_.OnAck(LeaseOf(1).id);
  EXPECT_TRUE(book_.idle());
  book_.SetDraining(false);
  EXPECT_EQ(book_.Credits(), 3);
}

TEST_F(LeaseBookTest, ExpectsNoAcknowledgementForWhatItHandedBack) {
  EXPECT_TRUE(book_.OnLease(LeaseOf(1)).ok());
  EXPECT_TRUE(book_.OnGenerated(stream_, LeaseOf(1).id, false));
  EXPECT_TRUE(book_.idle());
}

TEST(LeaseBookOptionsTest, MustBePositive) {
  EXPECT_TRUE(LeaseBook::Options().Validate().ok());
  EXPECT_EQ(ErrorReason((LeaseBook::Options{.max_groups = 0}).Validate()), "BAD_OPTION");
  EXPECT_EQ(ErrorReason((LeaseBook::Options{.samples_per_group = -1}).Validate()), "BAD_OPTION");
}

}  // namespace
}  // namespace syncopate::rollouter
