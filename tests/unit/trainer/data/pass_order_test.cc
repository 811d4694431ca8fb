#include "trainer/data/pass_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <vector>

namespace syncopate::trainer {
namespace {

TEST(PermutationTest, IsABijectionOfEverySizeAndKey) {
  for (int64_t size = 1; size <= 300; ++size) {
    for (uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      const Permutation permutation(key, size);
      std::set<int64_t> seen;
      for (int64_t i = 0; i < size; ++i) {
        const int64_t at = permutation.At(i);
        ASSERT_TRUE(at >= 0 && at < size);
        seen.insert(at);
      }
      ASSERT_EQ(static_cast<int64_t>(seen.size()), size) << size;
    }
  }
}

TEST(PermutationTest, IsABijectionOfAMillion) {
  constexpr int64_t kSize = 1'000'003;
  const Permutation permutation(17, kSize);
  std::vector<bool> seen(kSize);
  for (int64_t i = 0; i < kSize; ++i) {
    const int64_t at = permutation.At(i);
    ASSERT_FALSE(seen[at]);
    seen[at] = true;
  }
}

TEST(PermutationTest, ScattersNeighboursAndChangesWithItsKey) {
  constexpr int64_t kSize = 10'000;
  const Permutation one(1, kSize), two(2, kSize);
  int64_t close = 0, equal = 0, fixed = 0;
  for (int64_t i = 0; i + 1 < kSize; ++i) {
    close += std::abs(one.At(i) - one.At(i + 1)) < 100;  // 2 % of all pairs are close by chance
    equal += one.At(i) == two.At(i);
    fixed += one.At(i) == i;
  }
  EXPECT_LT(close, 300);
  EXPECT_LT(equal, 10);
  EXPECT_LT(fixed, 10);
}

TEST(PermutationTest, WorksForSizesNearTheEndOfNumbers) {
  const int64_t size = (int64_t{1} << 62) - 1;
  const Permutation permutation(3, size);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) seen.insert(permutation.At(size - 1 - i));
  EXPECT_EQ(seen.size(), 1000u);
}

std::map<std::pair<int32_t, int64_t>, int> CountRows(const PassOrder& order, int64_t passes, int64_t first = 0) {
  std::map<std::pair<int32_t, int64_t>, int> counts;
  for (int64_t pass = first; pass < first + passes; ++pass) {
    for (int64_t i = 0; i < order.prompts_per_pass(); ++i) {
      const PassOrder::Place place = order.At({pass, i});
      ++counts[{place.file, place.row}];
    }
  }
  return counts;
}

TEST(PassOrderTest, APassHasEachRowOnce) {
  const PassOrder order({{100, 1}, {1, 1}, {57, 1}}, 5);
  EXPECT_EQ(order.prompts_per_pass(), 158);
  const auto counts = CountRows(order, 1);
  EXPECT_EQ(counts.size(), 158u);
  for (const auto& [place, count] : counts) EXPECT_EQ(count, 1);
}

TEST(PassOrderTest, WeightsSayHowOftenARowComesAndPassesTakeTurns) {
  const PassOrder order({{10, 2.5}, {10, 0.3}, {4, 0.1}}, 5);
  EXPECT_EQ(order.prompts_per_pass(), 25 + 3);  // round(0.4) is 0, so the last file gives none
  for (const auto& [place, count] : CountRows(order, 1)) {
    EXPECT_TRUE(place.first == 0 ? count == 2 || count == 3 : count == 1) << place.first << " " << place.second;
  }
  // Twenty passes give 50 of each row of the first file and 6 of each of the second.
  for (const int64_t first : {int64_t{0}, int64_t{1'000'000'000'000}}) {
    const auto counts = CountRows(order, 20, first);
    EXPECT_EQ(counts.size(), 20u);
    for (const auto& [place, count] : counts) EXPECT_EQ(count, place.first == 0 ? 50 : 6);
  }
}

TEST(PassOrderTest, OrdersDifferByPassAndSeedAndAreTheSameAgain) {
  const std::vector<PassOrder::File> files = {{1000, 1}, {500, 1}};
  const PassOrder order(files, 1), again(files, 1), other(files, 2);
  int64_t by_pass = 0, by_seed = 0, mixed = 0;
  for (int64_t i = 0; i < 1500; ++i) {
    EXPECT_EQ(order.At({3, i}), again.At({3, i}));
    by_pass += order.At({3, i}) == order.At({4, i});
    by_seed += order.At({3, i}) == other.At({3, i});
    mixed += i < 750 && order.At({3, i}).file == 1;
  }
  EXPECT_LT(by_pass, 20);
  EXPECT_LT(by_seed, 20);
  EXPECT_TRUE(mixed > 200 && mixed < 300) << mixed;  // the files are mixed
}

}  // namespace
}  // namespace syncopate::trainer
