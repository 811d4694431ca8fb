#include "trainer/memory/cache_rule.h"

#include <gtest/gtest.h>

namespace syncopate::trainer {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(CacheRuleTest, AlwaysAndNeverLookAtNothing) {
  CacheRule always(EmptyCache::kAlways), never(EmptyCache::kNever);
  for (int64_t reserved : {int64_t{0}, kGiB, 100 * kGiB}) {
    EXPECT_TRUE(always.ShouldEmpty(reserved, kGiB));
    EXPECT_FALSE(never.ShouldEmpty(reserved, kGiB));
  }
}

TEST(CacheRuleTest, UnderPressureIsWhatNoStepHasEverNeededAtOnceATenthAndMore) {
  CacheRule rule(EmptyCache::kOnPressure);
  EXPECT_FALSE(rule.ShouldEmpty(10 * kGiB, 10 * kGiB));
  EXPECT_FALSE(rule.ShouldEmpty(11 * kGiB, 10 * kGiB));
  EXPECT_TRUE(rule.ShouldEmpty(11 * kGiB + 1, 10 * kGiB));
  // A small step after a large one is no reason to take memory from the next large one.
  EXPECT_FALSE(rule.ShouldEmpty(11 * kGiB, 2 * kGiB));
  // A step that truly needed more raises what may be held.
  EXPECT_FALSE(rule.ShouldEmpty(21 * kGiB, 20 * kGiB));
}

TEST(CacheRuleTest, WhereNobodyKnowsTheNeedThereIsNoPressure) {
  CacheRule rule(EmptyCache::kOnPressure);
  EXPECT_FALSE(rule.ShouldEmpty(100 * kGiB, 0));
}

// An allocator whose pieces stop to fit: each step leaves some of what it took behind, as reports of the field have it
// (30.1 to 38.2 GiB over a run).
TEST(CacheRuleTest, ReservedMemoryStaysFlatOverRaggedStepsAndGrowsWithoutTheRule) {
  for (EmptyCache when : {EmptyCache::kAlways, EmptyCache::kOnPressure, EmptyCache::kNever}) {
    CacheRule rule(when);
    int64_t fragments = 0, highest = 0, flushes = 0;
    for (int step = 1; step <= 200; ++step) {
      const int64_t need = 30 * kGiB - (step * 37 % 11) * (kGiB / 4);
      fragments += kGiB / 20;
      const int64_t reserved = 30 * kGiB + fragments;
      highest = std::max(highest, reserved);
      if (!rule.ShouldEmpty(reserved, need)) continue;
      fragments = 0;
      ++flushes;
    }
    if (when == EmptyCache::kNever) {
      EXPECT_EQ(highest, 30 * kGiB + 200 * (kGiB / 20));
    } else {
      EXPECT_LE(highest, 33 * kGiB + kGiB / 10);
    }
    EXPECT_EQ(flushes, when == EmptyCache::kAlways ? 200 : when == EmptyCache::kNever ? 0 : 3);
  }
}

}  // namespace
}  // namespace syncopate::trainer
