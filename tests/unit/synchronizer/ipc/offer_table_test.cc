#include "synchronizer/ipc/offer_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer::ipc {
namespace {

using ::syncopate::testing::HasReason;

SharedMemory MemoryWithId(uint64_t id) {
  auto memory = std::make_shared<LentMemory>();
  memory->info = {id, "GPU-0", {4096}};
  return memory;
}

OfferTable::Offer MakeOffer(int64_t attempt, uint64_t memory, bool complete, int sources = 1) {
  OfferTable::Offer offer;
  offer.attempt = attempt;
  offer.version = {1, attempt};
  offer.fingerprint = 7;
  offer.memory = MemoryWithId(memory);
  offer.complete = complete;
  if (!complete) offer.progress.assign(sources, 0);
  return offer;
}

Want MakeWant(int64_t attempt, uint64_t mapped = 0) { return {attempt, {1, attempt}, 7, mapped}; }

// The reason of the one refusal in `actions`, or "".
std::string RefusedWith(const OfferTable::Actions& actions) {
  if (actions.size() != 1) return "";
  const auto* refusal = std::get_if<Refusal>(&actions.front().message);
  return refusal == nullptr ? "" : refusal->reason;
}

TEST(OfferTableTest, LendsMemoryWithItsHandlesTheFirstTimeOnly) {
  OfferTable table;
  EXPECT_TRUE(table.Add(MakeOffer(1, 50, true)).empty());
  OfferTable::Actions first = *table.OnMessage(10, MakeWant(1));
  ASSERT_EQ(first.size(), 1u);
  const Grant& grant = std::get<Grant>(first[0].message);
  EXPECT_TRUE(grant.complete && grant.with_handles);
  EXPECT_EQ(grant.memory.id, 50u);
  EXPECT_NE(first[0].handles, nullptr);
  OfferTable::Actions again = *table.OnMessage(11, MakeWant(1, 50));
  EXPECT_FALSE(std::get<Grant>(again[0].message).with_handles);
  EXPECT_EQ(again[0].handles, nullptr);
  EXPECT_EQ(table.readers(1), 2);
}

TEST(OfferTableTest, RefusesWhatIsNotOffered) {
  OfferTable table;
  table.Add(MakeOffer(1, 50, true));
  EXPECT_EQ(RefusedWith(*table.OnMessage(10, MakeWant(2))), "PEER_LOST");
  Want other_model = MakeWant(1);
  other_model.fingerprint = 8;
  EXPECT_EQ(RefusedWith(*table.OnMessage(10, other_model)), "MODEL_MISMATCH");
  Want other_version = MakeWant(1);
  other_version.version = {1, 9};
  EXPECT_EQ(RefusedWith(*table.OnMessage(10, other_version)), "VERSION_NOT_STAGED");
  EXPECT_EQ(table.readers(1), 0);
}

TEST(OfferTableTest, ADownstreamThatSaysWhatOnlyUpstreamsSayIsHungUpOn) {
  OfferTable table;
  EXPECT_THAT(table.OnMessage(10, Progress{}).status(), HasReason("BAD_MESSAGE"));
}

TEST(OfferTableTest, ProgressReachesThoseWhoReadAndNobodyElse) {
  OfferTable table;
  table.Add(MakeOffer(1, 50, false, 2));
  table.Add(MakeOffer(2, 60, false, 2));
  ASSERT_TRUE(table.OnMessage(10, MakeWant(1)).ok());
  ASSERT_TRUE(table.OnMessage(11, MakeWant(2)).ok());
  OfferTable::Actions actions = table.Advance(1, 1, 4096);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].session, 10);
  EXPECT_EQ(std::get<Progress>(actions[0].message).bytes, (std::vector<int64_t>{0, 4096}));
  EXPECT_TRUE(table.Advance(1, 7, 1).empty()) << "a source that does not exist";
  EXPECT_TRUE(table.Advance(9, 0, 1).empty()) << "an attempt that does not exist";
  OfferTable::Actions late = *table.OnMessage(12, MakeWant(1));
  EXPECT_EQ(std::get<Grant>(late[0].message).progress, (std::vector<int64_t>{0, 4096}));
}

TEST(OfferTableTest, WithdrawingTellsTheReadersWhy) {
  OfferTable table;
  table.Add(MakeOffer(1, 50, true));
  ASSERT_TRUE(table.OnMessage(10, MakeWant(1)).ok());
  ASSERT_TRUE(table.OnMessage(11, MakeWant(1)).ok());
  ASSERT_TRUE(table.OnMessage(11, Release{1}).ok());
  OfferTable::Actions actions = table.Withdraw(1, Error(absl::StatusCode::kAborted, "SUPERSEDED", "newer"));
  EXPECT_EQ(RefusedWith(actions), "SUPERSEDED");
  EXPECT_EQ(actions[0].session, 10);
  EXPECT_TRUE(table.Withdraw(1, Error(absl::StatusCode::kAborted, "SUPERSEDED", "newer")).empty());
}

TEST(OfferTableTest, WhoComesAfterAnOfferWasWithdrawnIsToldWhyItWas) {
  OfferTable table;
  for (int64_t attempt = 1; attempt <= 100; ++attempt) {
    table.Add(MakeOffer(attempt, 50, true));
    table.Withdraw(attempt, Error(absl::StatusCode::kAborted, "SUPERSEDED", "newer"));
    table.Withdraw(attempt, Error(absl::StatusCode::kUnavailable, "PEER_LOST", "the attempt is over"));
  }
  EXPECT_EQ(RefusedWith(*table.OnMessage(10, MakeWant(100))), "SUPERSEDED");
  EXPECT_EQ(RefusedWith(*table.OnMessage(10, MakeWant(1))), "PEER_LOST") << "long ago";
}

TEST(OfferTableTest, WhatIsCompleteOutlivesItsAttemptUntilTheMemoryIsWrittenAgain) {
  OfferTable table;
  table.Add(MakeOffer(1, 50, false));
  ASSERT_TRUE(table.OnMessage(10, MakeWant(1)).ok());
  table.Advance(1, 0, 4096);
  table.Complete(1);
  EXPECT_TRUE(table.Retire(1).empty());
  EXPECT_TRUE(std::holds_alternative<Grant>((*table.OnMessage(11, MakeWant(1)))[0].message));
  EXPECT_EQ(table.Reclaim(51, {1, 9}).size(), 0u);
  EXPECT_EQ(table.Reclaim(50, {1, 9}).size(), 2u);
  EXPECT_EQ(table.offers(), 0u);
}

TEST(OfferTableTest, WhoComesAfterTheMemoryWasTakenIsToldToWaitOnlyIfThereIsANewerVersion) {
  OfferTable table;
  table.Add(MakeOffer(1, 50, true));
  table.Reclaim(50, MakeOffer(1, 50, true).version);
  EXPECT_EQ(RefusedWith(*table.OnMessage(10, MakeWant(1))), "PEER_LOST");
  table.Add(MakeOffer(2, 50, true));
  table.Reclaim(50, {9, 0});
  EXPECT_EQ(RefusedWith(*table.OnMessage(10, MakeWant(2))), "SUPERSEDED");
}

TEST(OfferTableTest, WhoWaitsForBytesThatNeverComeIsToldWhenTheAttemptEnds) {
  OfferTable table;
  table.Add(MakeOffer(1, 50, false));
  ASSERT_TRUE(table.OnMessage(10, MakeWant(1)).ok());
  EXPECT_EQ(RefusedWith(table.Retire(1)), "PEER_LOST");
  EXPECT_EQ(table.offers(), 0u);
}

TEST(OfferTableTest, AReaderThatIsGoneIsToldNothing) {
  OfferTable table;
  table.Add(MakeOffer(1, 50, true));
  ASSERT_TRUE(table.OnMessage(10, MakeWant(1)).ok());
  table.OnGone(10);
  EXPECT_EQ(table.readers(1), 0);
  EXPECT_TRUE(table.Reclaim(50, {1, 9}).empty());
}

TEST(OfferTableTest, TheSameOfferAgainDisturbsNobody) {
  OfferTable table;
  table.Add(MakeOffer(1, 50, true));
  ASSERT_TRUE(table.OnMessage(10, MakeWant(1)).ok());
  EXPECT_TRUE(table.Add(MakeOffer(1, 50, true)).empty());
  EXPECT_EQ(table.readers(1), 1);
}

TEST(OfferTableTest, ASecondOfferOfAnAttemptTakesTheFirstOneBack) {
  OfferTable table;
  table.Add(MakeOffer(1, 50, true));
  ASSERT_TRUE(table.OnMessage(10, MakeWant(1)).ok());
  EXPECT_EQ(RefusedWith(table.Add(MakeOffer(1, 60, true))), "SUPERSEDED");
  EXPECT_EQ(std::get<Grant>((*table.OnMessage(10, MakeWant(1)))[0].message).memory.id, 60u);
}

}  // namespace
}  // namespace syncopate::synchronizer::ipc
