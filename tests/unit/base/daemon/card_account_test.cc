#include "base/daemon/card_account.h"

#include <gtest/gtest.h>

#include <random>

namespace syncopate::daemon {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// A GPU that several processes use, as its driver counts it.
struct FakeCard {
  int64_t used = 0;
  absl::Status failure = {};
  CardReader Reader() {
    return [this]() -> absl::StatusOr<CardReading> {
      SYNCOPATE_RETURN_IF_ERROR(failure);
      return CardReading{80000 * kMiB, used};
    };
  }
};

int64_t BytesOf(const CardOwners& owners, const std::string& name) {
  for (const auto& [owner, bytes] : owners) {
    if (owner == name) return bytes;
  }
  ADD_FAILURE() << "no owner " << name;
  return 0;
}

TEST(CardAccountTest, ContextIsWhatTheDriverCountsBeyondTheProcessesOwnAllocations) {
  FakeCard card{.used = 900 * kMiB};
  CardAccount account(card.Reader());
  ASSERT_TRUE(account.Begin(0).ok());
  card.used += (500 + 3000) * kMiB;
  ASSERT_TRUE(account.End(3000 * kMiB).ok());
  EXPECT_EQ(account.context_bytes(), 500 * kMiB);
}

TEST(CardAccountTest, OwnersOfOneProcessAddUpToWhatTheDriverCountsWhateverHappens) {
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same cases each time
  FakeCard card;
  CardAccount account(card.Reader());
  for (int i = 0; i < 1000; ++i) {
    card.used = static_cast<int64_t>(random() % 80000) * kMiB;
    const auto own = static_cast<int64_t>(random() % 80000) * kMiB;
    const bool begins = random() % 2 == 0, ends = random() % 2 == 0;
    ASSERT_TRUE(!begins || account.Begin(own).ok());
    ASSERT_TRUE(!ends || account.End(own / 2).ok());
    const absl::StatusOr<CardOwners> owners = account.List({{"weights", own}, {"keys and values", 5 * kMiB}});
    ASSERT_TRUE(owners.ok());
    EXPECT_EQ(SumOwners(*owners), card.used);
    EXPECT_GE(BytesOf(*owners, kContextOwner), 0);
  }
}

// The check that a person makes on a GPU: what each daemon calls its own, and what was there before them, is what the
// driver counts.
TEST(CardAccountTest, OwnPartsOfAllProcessesAndWhatWasThereBeforeAddUpToWhatTheDriverCounts) {
  constexpr int64_t kBefore = 700 * kMiB;
  FakeCard card{.used = kBefore};
  CardAccount trainer(card.Reader()), rollouter(card.Reader());
  ASSERT_TRUE(trainer.Begin(0).ok());
  card.used += 480 * kMiB;
  ASSERT_TRUE(trainer.End(0).ok());
  card.used += 9000 * kMiB;  // the trainer's state
  ASSERT_TRUE(rollouter.Begin(0).ok());
  card.used += (620 + 4000) * kMiB;
  ASSERT_TRUE(rollouter.End(4000 * kMiB).ok());
  const CardOwners of_trainer = trainer.List({{"weights", 9000 * kMiB}}).value();
  const CardOwners of_rollouter = rollouter.List({{"weights", 4000 * kMiB}}).value();
  int64_t sum = kBefore;
  for (const CardOwners* owners : {&of_trainer, &of_rollouter})
    sum += SumOwners(*owners) - BytesOf(*owners, kOtherOwners);
  EXPECT_EQ(sum, card.used);
  EXPECT_EQ(BytesOf(of_trainer, kOtherOwners), kBefore + (620 + 4000) * kMiB) << "the rollouter, and what was before";
  EXPECT_EQ(BytesOf(of_rollouter, kOtherOwners), kBefore + (480 + 9000) * kMiB);
}

TEST(CardAccountTest, WhatALaterMeasurementFindsIsAddedOnceHoweverOftenItIsFound) {
  FakeCard card{.used = 0};
  CardAccount account(card.Reader());
  ASSERT_TRUE(account.Begin(0).ok());
  card.used = 400 * kMiB;
  ASSERT_TRUE(account.End(0).ok());
  for (int turn = 0; turn < 100; ++turn) {
    ASSERT_TRUE(account.Begin(0).ok());
    // The first turn loads kernels. Each has the state on the GPU meanwhile, whose memory is rounded up.
    const int64_t loaded = turn == 0 ? 150 * kMiB : 0;
    card.used += loaded + 1000 * kMiB + 6 * kMiB;
    ASSERT_TRUE(account.End(1000 * kMiB).ok());
    card.used -= 1000 * kMiB + 6 * kMiB;
  }
  EXPECT_EQ(account.context_bytes(), (400 + 150 + 6) * kMiB);
}

TEST(CardAccountTest, OthersThatLeaveDuringALaterMeasurementTakeNothingFromTheContext) {
  FakeCard card{.used = 20000 * kMiB};
  CardAccount account(card.Reader());
  ASSERT_TRUE(account.Begin(0).ok());
  card.used += 400 * kMiB;
  ASSERT_TRUE(account.End(0).ok());
  ASSERT_TRUE(account.Begin(0).ok());
  card.used -= 15000 * kMiB;
  ASSERT_TRUE(account.End(0).ok());
  EXPECT_EQ(account.context_bytes(), 400 * kMiB);
}

TEST(CardAccountTest, WithoutAMeasurementTheContextIsAmongTheOthers) {
  FakeCard card{.used = 5000 * kMiB};
  CardAccount account(card.Reader());
  ASSERT_TRUE(account.End(0).ok());
  const CardOwners owners = account.List({{"weights", 3000 * kMiB}}).value();
  EXPECT_EQ(BytesOf(owners, kContextOwner), 0);
  EXPECT_EQ(BytesOf(owners, kOtherOwners), 2000 * kMiB);
}

TEST(CardAccountTest, OwnPartsThatAreMoreThanInUseMakeTheOthersNegativeAndTheSumStaysExact) {
  FakeCard card{.used = 1000 * kMiB};
  CardAccount account(card.Reader());
  const CardOwners owners = account.List({{"weights", 1500 * kMiB}}).value();
  EXPECT_EQ(BytesOf(owners, kOtherOwners), -500 * kMiB);
  EXPECT_EQ(SumOwners(owners), card.used);
}

TEST(CardAccountTest, KeepsWhatExcludesOthersUntilTheMeasurementEnds) {
  FakeCard card;
  CardAccount account(card.Reader());
  auto exclusive = std::make_shared<const int>(0);
  const std::weak_ptr<const int> seen = exclusive;
  ASSERT_TRUE(account.Begin(0, std::move(exclusive)).ok());
  EXPECT_FALSE(seen.expired());
  ASSERT_TRUE(account.End(0).ok());
  EXPECT_TRUE(seen.expired());
}

TEST(CardAccountTest, ADriverThatDoesNotAnswerEndsTheMeasurementWithoutEffect) {
  FakeCard card{.used = 100 * kMiB};
  CardAccount account(card.Reader());
  auto exclusive = std::make_shared<const int>(0);
  const std::weak_ptr<const int> seen = exclusive;
  ASSERT_TRUE(account.Begin(0, std::move(exclusive)).ok());
  card.failure = absl::UnavailableError("no answer");
  EXPECT_TRUE(absl::IsUnavailable(account.End(0)));
  EXPECT_TRUE(seen.expired());
  EXPECT_TRUE(absl::IsUnavailable(account.Begin(0)));
  EXPECT_TRUE(absl::IsUnavailable(account.List({}).status()));
  card.failure = absl::OkStatus();
  card.used = 900 * kMiB;
  ASSERT_TRUE(account.End(0).ok());  // ends none
  EXPECT_EQ(account.context_bytes(), 0);
}

}  // namespace
}  // namespace syncopate::daemon
