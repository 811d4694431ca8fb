#include "synchronizer/ipc/offer_table.h"

#include <algorithm>
#include <map>
#include <random>

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

Want MakeWant(int64_t attempt, uint64_t mapped = 0) {
  return {.attempt = attempt, .version = {1, attempt}, .fingerprint = 7, .mapped_memory = mapped};
}

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

OfferTable WithLoan() {
  OfferTable table;
  OfferTable::Offer offer = MakeOffer(1, 50, true);
  offer.exclusive = true;
  table.Add(std::move(offer));
  return table;
}

Want WantOfProcess(uint64_t borrower) {
  Want want = MakeWant(1);
  want.borrower = borrower;
  return want;
}

TEST(OfferTableLoanTest, MemoryThatReadersWriteToIsLentToOneProcessAtATime) {
  OfferTable table = WithLoan();
  EXPECT_EQ(RefusedWith(*table.OnMessage(10, WantOfProcess(5))), "");
  EXPECT_EQ(RefusedWith(*table.OnMessage(11, WantOfProcess(6))), "ON_LOAN");
  EXPECT_EQ(RefusedWith(*table.OnMessage(11, WantOfProcess(0))), "ON_LOAN") << "a process that does not say who it is";
  EXPECT_EQ(table.readers(1), 1) << "whoever is refused has no loan";
  table.Add(MakeOffer(2, 60, true));
  EXPECT_EQ(RefusedWith(*table.OnMessage(12, MakeWant(2))), "") << "other memory";
  EXPECT_EQ(RefusedWith(*table.OnMessage(13, MakeWant(2))), "") << "memory that nobody writes to";
}

TEST(OfferTableLoanTest, ALoanEndsWhenItIsReleasedOrItsSessionIsGone) {
  OfferTable table = WithLoan();
  ASSERT_TRUE(table.OnMessage(10, WantOfProcess(5)).ok());
  table.OnGone(11);
  EXPECT_EQ(RefusedWith(*table.OnMessage(11, WantOfProcess(6))), "ON_LOAN") << "another session's end ends no loan";
  table.OnGone(10);
  EXPECT_EQ(RefusedWith(*table.OnMessage(11, WantOfProcess(6))), "");
  ASSERT_TRUE(table.OnMessage(11, Release{1}).ok());
  EXPECT_EQ(RefusedWith(*table.OnMessage(12, WantOfProcess(7))), "");
}

// It asks again when it maps the base anew, before it has unmapped what it maps.
TEST(OfferTableLoanTest, TheProcessThatHasTheLoanMayAskAgainAndKeepsItUntilItsLastSessionEnds) {
  OfferTable table = WithLoan();
  ASSERT_TRUE(table.OnMessage(10, WantOfProcess(5)).ok());
  EXPECT_EQ(RefusedWith(*table.OnMessage(11, WantOfProcess(5))), "");
  table.OnGone(10);
  EXPECT_EQ(RefusedWith(*table.OnMessage(12, WantOfProcess(6))), "ON_LOAN");
  EXPECT_EQ(RefusedWith(*table.OnMessage(11, WantOfProcess(5))), "") << "the same session";
  table.OnGone(11);
  EXPECT_EQ(RefusedWith(*table.OnMessage(12, WantOfProcess(6))), "");
}

TEST(OfferTableLoanTest, WithdrawnMemoryIsOnLoanToNobody) {
  OfferTable table = WithLoan();
  ASSERT_TRUE(table.OnMessage(10, WantOfProcess(5)).ok());
  table.Withdraw(1, absl::UnavailableError("gone"));
  OfferTable::Offer again = MakeOffer(1, 51, true);
  again.exclusive = true;
  table.Add(std::move(again));
  EXPECT_EQ(RefusedWith(*table.OnMessage(11, WantOfProcess(6))), "");
}

TEST(OfferTableLoanTest, MemoryOfAnotherDeviceThanIsWantedIsRefused) {
  OfferTable table;
  table.Add(MakeOffer(1, 50, true));  // of GPU-0
  Want want = MakeWant(1);
  for (const char* device : {"GPU-1", kHostMemory}) {
    want.device = device;
    EXPECT_EQ(RefusedWith(*table.OnMessage(10, want)), "OTHER_DEVICE") << device;
  }
  want.device = "GPU-0";
  EXPECT_EQ(RefusedWith(*table.OnMessage(10, want)), "");
}

// Any sequence of requests, releases and ends: never two processes, and always one if it asks while nobody has the loan.
TEST(OfferTableLoanTest, InAnyOrderOfEventsOneProcessHasTheLoan) {
  std::mt19937_64 random(7);
  constexpr int64_t kSessions = 6;
  for (int round = 0; round < 200; ++round) {
    OfferTable table = WithLoan();
    std::map<int64_t, uint64_t> holders;  // process by session
    for (int event = 0; event < 100; ++event) {
      const int64_t session = static_cast<int64_t>(random() % kSessions);
      const uint64_t process = 1 + static_cast<uint64_t>(session) / 2;
      if (random() % 3 == 0) {
        if (random() % 2 == 0) {
          table.OnGone(session);
        } else {
          ASSERT_TRUE(table.OnMessage(session, Release{1}).ok());
        }
        holders.erase(session);
      } else {
        const std::string refused = RefusedWith(*table.OnMessage(session, WantOfProcess(process)));
        holders.erase(session);
        const bool taken = std::any_of(holders.begin(), holders.end(),
                                       [process](const auto& holder) { return holder.second != process; });
        ASSERT_EQ(refused, taken ? "ON_LOAN" : "");
        if (!taken) holders[session] = process;
      }
      ASSERT_EQ(table.readers(1), static_cast<int64_t>(holders.size()));
    }
  }
}

}  // namespace
}  // namespace syncopate::synchronizer::ipc
