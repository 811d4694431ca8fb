#include "trainer/step/deal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/philox.h"
#include "tests/support/small_model.h"

namespace syncopate::trainer {
namespace {

using ::testing::HasSubstr;
using MicroBatches = std::vector<std::vector<size_t>>;

constexpr SequenceCost kByTokens = {1, 0};

std::vector<int64_t> RandomLengths(uint64_t seed, size_t count, uint32_t longest) {
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < count; ++i) lengths.push_back(1 + Philox4x32(seed, i)[0] % longest);
  return lengths;
}

double CostOfRank(const MicroBatches& rank, const std::vector<int64_t>& lengths, const SequenceCost& cost) {
  double sum = 0;
  for (const auto& micro_batch : rank) {
    for (size_t index : micro_batch) sum += cost.Estimate(lengths[index]);
  }
  return sum;
}

TEST(DealTest, FillsMicroBatchesCostliestFirstAndKeepsTheOrderInside) {
  EXPECT_EQ(DealByCost({3, 8, 5, 2, 7, 5}, 1, 10, kByTokens)->at(0), (MicroBatches{{1, 3}, {0, 4}, {2, 5}}));
  EXPECT_EQ(DealByCost({4, 4, 4}, 1, 4, kByTokens)->at(0), (MicroBatches{{0}, {1}, {2}}));
  EXPECT_EQ(DealByCost({1, 9, 4}, 1, 1000, kByTokens)->at(0), (MicroBatches{{0, 1, 2}}));
}

TEST(DealTest, TwoMicroBatchesAreHalvesNotAFullOneAndARest) {
  const auto deal = DealByCost({5, 5, 5, 5, 5, 5}, 1, 20, kByTokens);
  EXPECT_EQ(deal->at(0), (MicroBatches{{0, 2, 4}, {1, 3, 5}}));
}

TEST(DealTest, ASequenceThatNoMicroBatchHoldsIsNamed) {
  const absl::Status refused = DealByCost({3, 11, 4}, 2, 10, kByTokens).status();
  EXPECT_EQ(ErrorReason(refused), "SEQUENCE_TOO_LONG");
  EXPECT_THAT(refused.message(), HasSubstr("11 tokens"));
  EXPECT_THAT(refused.message(), HasSubstr("train.micro_batch_tokens 10"));
}

TEST(DealTest, MoreRanksThanSequencesLeaveSomeWithAnEmptyMicroBatch) {
  const auto deal = DealByCost({7, 3}, 4, 10, kByTokens);
  ASSERT_TRUE(deal.ok());
  size_t empty = 0;
  for (const MicroBatches& rank : *deal) {
    ASSERT_EQ(rank.size(), 1u);
    empty += rank[0].empty() ? 1 : 0;
  }
  EXPECT_EQ(empty, 2u);
}

TEST(DealTest, EverySequenceIsDealtOnceWithinTheBudgetToRanksWithEquallyManyMicroBatches) {
  constexpr int64_t kBudget = 64;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    for (int ranks : {1, 2, 3, 4, 8}) {
      const std::vector<int64_t> lengths = RandomLengths(seed, 1 + seed * 3, 60);
      const auto deal = DealByCost(lengths, ranks, kBudget, {1, 0.05});
      ASSERT_TRUE(deal.ok());
      ASSERT_EQ(deal->size(), static_cast<size_t>(ranks));
      std::vector<int> seen(lengths.size());
      for (const MicroBatches& rank : *deal) {
        EXPECT_EQ(rank.size(), deal->at(0).size());
        for (const auto& micro_batch : rank) {
          int64_t tokens = 0;
          for (size_t index : micro_batch) {
            tokens += lengths[index];
            ++seen[index];
          }
          EXPECT_LE(tokens, kBudget);
          EXPECT_TRUE(std::is_sorted(micro_batch.begin(), micro_batch.end()));
        }
      }
      EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
      // With one micro-batch less for each rank, some sequence finds no room: then every micro-batch is more than half
      // full.
      const auto total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
      EXPECT_GT(total, kBudget / 2 * static_cast<int64_t>(deal->at(0).size() - 1) * ranks);
    }
  }
}

TEST(DealTest, NoRankHasMoreThanItsShareAndOneSequence) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const SequenceCost cost = {1, 0.01 * static_cast<double>(seed % 7)};
    const std::vector<int64_t> lengths = RandomLengths(seed, 12 + seed, 500);
    double all = 0, largest = 0;
    for (int64_t length : lengths) {
      all += cost.Estimate(length);
      largest = std::max(largest, cost.Estimate(length));
    }
    for (int ranks : {2, 3, 4}) {
      const Deal deal = *DealByCost(lengths, ranks, 1 << 20, cost);
      for (const MicroBatches& rank : deal) {
        EXPECT_LE(CostOfRank(rank, lengths, cost), all / ranks + largest);
      }
    }
  }
}

TEST(DealTest, AttentionCountsSoThatLongSequencesAreNotAllOnOneRank) {
  // Counted in tokens, one sequence of 1000 equals ten of 100; in cost the one is more than the ten.
  std::vector<int64_t> lengths = {1000};
  lengths.insert(lengths.end(), 12, 100);
  const SequenceCost cost = {1, 0.01};
  const Deal deal = *DealByCost(lengths, 2, 1 << 20, cost);
  const size_t with_long = deal[0][0][0] == 0 ? 0 : 1;
  EXPECT_EQ(deal[with_long][0], (std::vector<size_t>{0}));
  EXPECT_EQ(deal[1 - with_long][0].size(), 12u);
}

TEST(DealTest, ALargerModelWeighsAttentionLess) {
  model::ModelConfig small = testing::SmallModel(), large = small;
  large.intermediate_size *= 16;
  auto weight = [](const model::ModelConfig& config) {
    return ComputeCost(config).per_square / ComputeCost(config).per_token;
  };
  EXPECT_GT(weight(small), weight(large));
  EXPECT_GT(weight(large), 0);
}

}  // namespace
}  // namespace syncopate::trainer
