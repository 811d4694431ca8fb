#include "synchronizer/nccl/group_plan.h"

#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer::nccl {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using Kind = Transmission::Kind;

constexpr int64_t kMega = 1 << 20;

int64_t GetBytes(const std::vector<Copy>& copies) {
  int64_t sum = 0;
  for (const Copy& copy : copies) sum += copy.bytes;
  return sum;
}

TEST(CutIntoRoundsTest, FewBytesGoInOneRound) {
  auto rounds = CutIntoRounds({{0, 0, 0, 0, 100}, {0, 0, 500, 500, 50}}, {8, kMega});
  ASSERT_THAT(rounds, SizeIs(1));
  EXPECT_THAT(rounds[0], SizeIs(2));
}

TEST(CutIntoRoundsTest, OneLargeMessageIsCutIntoAlignedPartsOfWhichTheLastIsTheSmallest) {
  for (int64_t least : {1, 4}) {
    auto rounds = CutIntoRounds({{1, 0, 256, 512, 40 * kMega}}, {8, least * kMega});
    ASSERT_THAT(rounds, SizeIs(8));
    int64_t before = 12 * kMega;
    for (const auto& round : rounds) {
      ASSERT_THAT(round, SizeIs(1));
      EXPECT_LE(round[0].bytes, before + 256);
      EXPECT_GE(round[0].bytes, least * kMega - 256 * 8);
      EXPECT_EQ(round[0].source_offset % 256, 0);
      EXPECT_EQ(round[0].destination_offset - round[0].source_offset, 256);
      before = round[0].bytes;
    }
    EXPECT_LE(before, least == 1 ? 40 * kMega / 36 + 256 : 4 * kMega + 256) << "a share of 1 to 8";
  }
}

TEST(CutIntoRoundsTest, NoMessageBecomesSmallerThanTheLimitBecauseOfTheCut) {
  EXPECT_THAT(CutIntoRounds({{0, 0, 0, 0, 10 * kMega}}, {8, 4 * kMega}), SizeIs(2));
  EXPECT_THAT(CutIntoRounds({{0, 0, 0, 0, 7 * kMega}}, {8, 4 * kMega}), SizeIs(1));
}

TEST(CutIntoRoundsTest, KeepsEveryByteInOrderWhateverTheCopies) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Copy> copies;
    int64_t from = 0;
    int64_t to = 0;
    for (uint64_t i = 0; i <= random() % 20; ++i) {
      auto bytes = static_cast<int64_t>(1 + random() % 100000);
      copies.push_back({0, 0, from, to, bytes});
      from += bytes + static_cast<int64_t>(random() % 300);
      to += bytes + static_cast<int64_t>(random() % 300);
    }
    RoundOptions options{static_cast<int32_t>(1 + random() % 9), static_cast<int64_t>(256 + random() % 100000)};
    std::vector<std::vector<Copy>> rounds = CutIntoRounds(copies, options);
    EXPECT_LE(static_cast<int32_t>(rounds.size()), options.max_rounds);
    std::vector<Copy> merged;
    for (const auto& round : rounds) {
      EXPECT_FALSE(round.empty());
      for (const Copy& part : round) {
        bool goes_on = !merged.empty() && merged.back().source_offset + merged.back().bytes == part.source_offset &&
                       merged.back().destination_offset + merged.back().bytes == part.destination_offset;
        if (goes_on) {
          merged.back().bytes += part.bytes;
        } else {
          merged.push_back(part);
        }
      }
    }
    EXPECT_EQ(GetBytes(merged), GetBytes(copies)) << "seed " << seed;
    EXPECT_LE(merged.size(), copies.size()) << "seed " << seed;
  }
}

TEST(GroupShapeTest, BroadcastsOnlyWithMoreReplicasThanSources) {
  EXPECT_FALSE((GroupShape{2, 2, 4}.broadcasts()));
  EXPECT_EQ((GroupShape{2, 2, 4}.communicators()), 1);
  EXPECT_TRUE((GroupShape{2, 3, 4}.broadcasts()));
  EXPECT_EQ((GroupShape{2, 3, 4}.communicators()), 8);
}

// Simulates the rounds of all members: the messages of each pair must match in order and size.
void ExpectPlansFit(const GroupShape& shape, const std::vector<Copy>& copies, const RoundOptions& options) {
  using Pair = std::tuple<int32_t, int32_t, int32_t>;  // communicator, from, to
  std::map<Pair, std::vector<int64_t>> sent;
  std::map<Pair, std::vector<int64_t>> received;
  std::map<int32_t, std::map<int32_t, int32_t>> seats;  // communicator -> rank -> size
  auto play = [&](const GroupPlan& plan) {
    for (const Seat& seat : plan.seats) {
      EXPECT_TRUE(seats[seat.communicator].try_emplace(seat.rank, seat.size).second) << "two members in one seat";
    }
    for (const Round& round : plan.rounds) {
      const Seat& seat = plan.seats[round.seat];
      for (const Transmission& message : round.messages) {
        EXPECT_GT(message.range.size(), 0);
        bool sends = message.kind == Kind::kSend || (message.kind == Kind::kBroadcast && seat.rank == 0);
        if (!sends) received[{seat.communicator, message.peer, seat.rank}].push_back(message.range.size());
        if (message.kind == Kind::kSend) {
          sent[{seat.communicator, seat.rank, message.peer}].push_back(message.range.size());
        } else if (sends) {
          for (int32_t to = 1; to < seat.size; ++to) {
            sent[{seat.communicator, 0, to}].push_back(message.range.size());
          }
        }
      }
    }
  };
  for (int32_t rank = 0; rank < shape.sources; ++rank) play(PlanOfSource(shape, rank, copies, options));
  for (int32_t receiver = 0; receiver < shape.receivers(); ++receiver) {
    std::vector<Copy> own;
    std::ranges::copy_if(copies, std::back_inserter(own),
                         [&](const Copy& copy) { return copy.destination == receiver % shape.world; });
    play(PlanOfReceiver(shape, receiver, own, options));
  }
  EXPECT_EQ(sent, received);
  EXPECT_EQ(static_cast<int32_t>(seats.size()), shape.communicators());
  for (const auto& [communicator, ranks] : seats) {
    for (const auto& [rank, size] : ranks) EXPECT_EQ(size, static_cast<int32_t>(ranks.size()));
  }
}

TEST(GroupPlanTest, WhatIsSentIsWhatIsReceivedInEveryShape) {
  for (int32_t sources : {1, 2, 3}) {
    for (int32_t replicas : {1, 2, 3, 5}) {
      for (int32_t world : {1, 2, 4}) {
        std::mt19937_64 random(sources * 100 + replicas * 10 + world);
        std::vector<Copy> copies;
        for (int32_t slice = 0; slice < world; ++slice) {
          int64_t at = 0;
          for (int i = 0; i < 9; ++i) {
            auto bytes = static_cast<int64_t>(random() % 9000);
            copies.push_back({static_cast<int32_t>(random() % sources), slice, at + slice * 256, at, bytes});
            at += bytes;
          }
        }
        ExpectPlansFit({sources, replicas, world}, copies, {4, 1024});
      }
    }
  }
}

TEST(GroupPlanTest, TheFirstMessageOfEveryPairIsItsWarmUp) {
  GroupShape shape{2, 2, 1};
  GroupPlan source = PlanOfSource(shape, 1, {}, {});
  auto rounds = WarmUp(source, shape, true, 256);
  ASSERT_THAT(rounds, SizeIs(1));
  EXPECT_THAT(rounds[0].messages,
              ElementsAre(Transmission{Kind::kSend, 2, {0, 256}}, Transmission{Kind::kSend, 3, {0, 256}}));
  GroupPlan receiver = PlanOfReceiver(shape, 0, {}, {});
  rounds = WarmUp(receiver, shape, false, 256);
  EXPECT_THAT(rounds[0].messages,
              ElementsAre(Transmission{Kind::kReceive, 0, {0, 256}}, Transmission{Kind::kReceive, 1, {0, 256}}));
  GroupShape wide{1, 3, 1};
  rounds = WarmUp(PlanOfReceiver(wide, 2, {}, {}), wide, false, 256);
  ASSERT_THAT(rounds, SizeIs(1));
  EXPECT_THAT(rounds[0].messages, ElementsAre(Transmission{Kind::kBroadcast, 0, {0, 256}}));
}

}  // namespace
}  // namespace syncopate::synchronizer::nccl
