#include "ranks/late_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ranks/thread_ranks.h"

namespace syncopate {
namespace {

constexpr absl::Duration kCallDeadline = absl::Seconds(20);

TEST(LateRanksTest, RefusesCallsBeforeTheRanksHaveMet) {
  LateRanks late(1, 3);
  EXPECT_EQ(late.rank(), 1);
  EXPECT_EQ(late.world(), 3);
  std::vector<double> values = {1};
  EXPECT_EQ(ErrorReason(late.AllReduceSum(absl::MakeSpan(values))), "RANKS_APART");
  EXPECT_EQ(ErrorReason(late.Finish()), "RANKS_APART");
}

TEST(LateRanksTest, ForwardsCallsOnceTheRanksHaveMet) {
  auto ranks = MakeThreadRanks(2, kCallDeadline);
  LateRanks late(1, 2);
  late.Connect(std::move(ranks[1]));
  std::vector<double> first = {1, 2}, second = {10, 20};
  std::thread other([&] { EXPECT_TRUE(ranks[0]->AllReduceSum(absl::MakeSpan(first)).ok()); });
  EXPECT_TRUE(late.AllReduceSum(absl::MakeSpan(second)).ok());
  other.join();
  EXPECT_THAT(second, ::testing::ElementsAre(11, 22));
  EXPECT_EQ(first, second);
}

TEST(LateRanksTest, AnAbortBeforeTheMeetingEndsTheCallsAfterIt) {
  auto ranks = MakeThreadRanks(2, kCallDeadline);
  LateRanks late(0, 2);
  late.Abort("rank 1 has left");
  late.Abort("a later reason");
  late.Connect(std::move(ranks[0]));
  const absl::Status status = late.Barrier();
  EXPECT_EQ(ErrorReason(status), "RANK_LOST");
  EXPECT_THAT(status.message(), ::testing::HasSubstr("rank 1 has left")) << "the first reason is the cause";
}

}  // namespace
}  // namespace syncopate
