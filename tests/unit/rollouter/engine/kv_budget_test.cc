#include "rollouter/engine/kv_budget.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace syncopate::rollouter {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// The device has 1000 MiB, of which 700 are free. A block takes one MiB, and the longest sequence ten blocks.
KvBudget Budget() {
  return {.total = 1000 * kMiB,
          .free = 700 * kMiB,
          .share = 0.9,
          .reserved = 50 * kMiB,
          .block_bytes = kMiB,
          .max_context = 160,
          .blocks_of_use = 100000};
}

TEST(KvBudgetTest, BlocksGetWhatOthersLeaveOfTheShare) { EXPECT_EQ(BlocksThatFit(Budget()).value(), 700 - 100 - 50); }

TEST(KvBudgetTest, ATrainerThatSharesTheDeviceKeepsRoomForItsSendSlotsAndARefusalNamesThem) {
  KvBudget budget = Budget();
  budget.others = 30 * kMiB;
  EXPECT_EQ(BlocksThatFit(budget).value(), 700 - 100 - 50 - 30);
  budget.others = 545 * kMiB;
  EXPECT_THAT(BlocksThatFit(budget), HasReason("OUT_OF_GPU_MEMORY"));
  EXPECT_THAT(BlocksThatFit(budget), HasMessage(HasSubstr("545 MiB for the trainer's send slots")));
  EXPECT_THAT(BlocksThatFit(Budget()), ::syncopate::testing::IsOk());
}

TEST(KvBudgetTest, NoMoreThanAreOfUse) {
  KvBudget budget = Budget();
  budget.blocks_of_use = 77;
  EXPECT_EQ(BlocksThatFit(budget).value(), 77);
}

TEST(KvBudgetTest, AsManyAsAreAskedFor) {
  KvBudget budget = Budget();
  budget.blocks_asked = 400;
  EXPECT_EQ(BlocksThatFit(budget).value(), 400);
  budget.blocks_asked = 551;
  EXPECT_THAT(BlocksThatFit(budget), HasReason("OUT_OF_GPU_MEMORY"));
  EXPECT_THAT(BlocksThatFit(budget), HasMessage(HasSubstr("rollout.kv_tokens 8816 needs 551 MiB")));
}

TEST(KvBudgetTest, OneSequenceOfTheLongestMustFit) {
  KvBudget budget = Budget();
  budget.free = 160 * kMiB;
  EXPECT_EQ(BlocksThatFit(budget).value(), 10);
  budget.free -= 1;
  EXPECT_THAT(BlocksThatFit(budget), HasReason("OUT_OF_GPU_MEMORY"));
  EXPECT_THAT(BlocksThatFit(budget), HasMessage(HasSubstr("one sequence of 160 tokens needs 10 MiB")));
  budget.free = 20 * kMiB;  // less than the share that must stay free
  EXPECT_THAT(BlocksThatFit(budget), HasMessage(HasSubstr("leaves 0 MiB")));
}

}  // namespace
}  // namespace syncopate::rollouter
