#include "trainer/memory/cache_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <vector>

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
  // A small step after a large one must not take memory from the next large one.
  EXPECT_FALSE(rule.ShouldEmpty(11 * kGiB, 2 * kGiB));
  // A step that really needed more raises the limit.
  EXPECT_FALSE(rule.ShouldEmpty(21 * kGiB, 20 * kGiB));
}

TEST(CacheRuleTest, WhereNobodyKnowsTheNeedThereIsNoPressure) {
  CacheRule rule(EmptyCache::kOnPressure);
  EXPECT_FALSE(rule.ShouldEmpty(100 * kGiB, 0));
}

// An allocator whose pieces stop to fit: each step leaves a part of its memory behind, as in reports from the field
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

constexpr int64_t kMiB = int64_t{1} << 20;

struct Piece {
  int64_t bytes;
};

// An allocator that splits no block, like libtorch's with max_split_size_mb: a block serves requests that are up to 20
// MiB smaller.
class FragmentingAllocator {
 public:
  using Block = std::list<Piece>::iterator;

  Block Take(int64_t bytes);
  void Free(Block block);
  void Empty();

  int64_t in_use = 0, peak = 0, reserved = 0, most_reserved = 0;

 private:
  std::list<Piece> used_, unused_;
};

FragmentingAllocator::Block FragmentingAllocator::Take(int64_t bytes) {
  Block best = unused_.end();
  for (Block i = unused_.begin(); i != unused_.end(); ++i) {
    const bool fits = i->bytes >= bytes && i->bytes < bytes + 20 * kMiB;
    if (fits && (best == unused_.end() || i->bytes < best->bytes)) best = i;
  }
  if (best == unused_.end()) {
    best = unused_.insert(unused_.end(), {bytes});
    reserved += bytes;
    most_reserved = std::max(most_reserved, reserved);
  }
  in_use += best->bytes;
  peak = std::max(peak, in_use);
  used_.splice(used_.end(), unused_, best);
  return best;
}

void FragmentingAllocator::Free(Block block) {
  in_use -= block->bytes;
  unused_.splice(unused_.end(), used_, block);
}

void FragmentingAllocator::Empty() {
  unused_.clear();
  reserved = in_use;
}

// Allocates like a step of one micro-batch: in the forward direction each layer leaves blocks that its backward frees,
// and the backward allocates others; all sizes depend on the number of tokens.
void Step(FragmentingAllocator& allocator, int64_t tokens) {
  constexpr int kLayers = 24;
  constexpr int64_t kLeft[] = {1792, 5376, 7168, 9728, 19456}, kTaken[] = {3584, 14336, 24320};
  std::vector<std::vector<FragmentingAllocator::Block>> left(kLayers);
  for (auto& layer : left) {
    for (int64_t bytes : kLeft) layer.push_back(allocator.Take(bytes * tokens));
  }
  for (; !left.empty(); left.pop_back()) {
    std::vector<FragmentingAllocator::Block> taken;
    for (int64_t bytes : kTaken) taken.push_back(allocator.Take(bytes * tokens));
    for (auto block : taken) allocator.Free(block);
    for (auto block : left.back()) allocator.Free(block);
  }
}

struct Held {
  // The largest number of bytes reserved after a step, relative to the largest number in use at once.
  double after = 0;
  double during = 0;  // the same figure at any moment of a step, except in the first two steps
  int flushes = 0;
};

// Runs fifty steps of one to two times 16,384 tokens. The first step shows the need, the second that blocks do not fit.
Held HoldOverSteps(bool looks_before) {
  FragmentingAllocator allocator;
  allocator.Take(8 * kGiB);  // weights and moments
  CacheRule rule(EmptyCache::kOnPressure);
  std::mt19937_64 random(5);
  std::uniform_int_distribution<int64_t> tokens(16384, 32768);
  Held held;
  auto empty = [&](bool should) {
    if (!should) return;
    allocator.Empty();
    ++held.flushes;
  };
  for (int step = 0; step < 50; ++step) {
    if (looks_before) empty(rule.ShouldEmptyBefore(allocator.reserved, allocator.in_use, allocator.peak));
    allocator.most_reserved = 0;
    Step(allocator, tokens(random));
    const auto share = [&](int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(allocator.peak); };
    if (step > 1) held.during = std::max(held.during, share(allocator.most_reserved));
    empty(rule.ShouldEmpty(allocator.reserved, allocator.peak));
    held.after = std::max(held.after, share(allocator.reserved));
  }
  return held;
}

TEST(CacheRuleTest, AFragmentingAllocatorStaysWithinATenthOfWhatIsInUseDuringStepsToo) {
  const Held held = HoldOverSteps(/*looks_before=*/true);
  EXPECT_LE(held.during, 1.1);
  EXPECT_LE(held.after, 1.1);
  EXPECT_LE(held.flushes, 50);
  // Checks after steps alone leave nearly the memory of two steps reserved at once.
  EXPECT_GT(HoldOverSteps(/*looks_before=*/false).during, 1.4);
}

TEST(CacheRuleTest, AnAllocatorWhoseBlocksFitKeepsThemBetweenMicroBatches) {
  CacheRule rule(EmptyCache::kOnPressure);
  EXPECT_FALSE(rule.ShouldEmptyBefore(10 * kGiB, kGiB, 10 * kGiB));
  EXPECT_FALSE(rule.ShouldEmptyBefore(11 * kGiB, kGiB, 10 * kGiB));
}

TEST(CacheRuleTest, OnceBlocksDoNotFitAllButATenthIsGivenBackBeforeEachMicroBatch) {
  CacheRule rule(EmptyCache::kOnPressure);
  EXPECT_TRUE(rule.ShouldEmpty(12 * kGiB, 10 * kGiB));
  EXPECT_FALSE(rule.ShouldEmptyBefore(2 * kGiB, kGiB, 10 * kGiB));
  EXPECT_TRUE(rule.ShouldEmptyBefore(2 * kGiB + 1, kGiB, 10 * kGiB));
  CacheRule always(EmptyCache::kAlways), never(EmptyCache::kNever);
  for (CacheRule* other : {&always, &never}) {
    other->ShouldEmpty(12 * kGiB, 10 * kGiB);
    EXPECT_FALSE(other->ShouldEmptyBefore(12 * kGiB, kGiB, 10 * kGiB));
  }
}

}  // namespace
}  // namespace syncopate::trainer
