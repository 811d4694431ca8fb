#include "rollouter/cuda/decode/paged_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "cuda/driver.h"
#include "tests/gpu/engine/half_values.h"
#include "tests/support/status_matchers.h"

namespace syncopate::rollouter {
namespace {

using cuda::DeviceBuffer;
using testing::Download;
using testing::Half;
using testing::kHalfNan;
using testing::RandomHalves;
using testing::RelativeError;
using testing::Upload;
using testing::Widen;
using testing::WidenAll;

constexpr int kLayers = 2;
constexpr int kLayer = 1;

// Row r is the sequence in slot rows - 1 - r, in randomly chosen blocks. Numbers that no row may read are NaN, also in
// the rest of the last blocks.
struct Rig {
  HeadCounts heads;
  std::vector<int32_t> lengths;
  std::vector<int32_t> slots;
  int32_t table_stride = 0;
  int32_t blocks = 0;
  std::vector<int32_t> tables;
  std::vector<Half> keys, values, queries;

  Rig(const HeadCounts& counts, const std::vector<int32_t>& row_lengths) : heads(counts), lengths(row_lengths) {
    int32_t used = 0;
    for (int32_t length : lengths) {
      const int32_t needed = (length + kTokensPerBlock - 1) / kTokensPerBlock;
      table_stride = std::max(table_stride, needed);
      used += needed;
    }
    blocks = used + 3;
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    const int64_t rows = static_cast<int64_t>(lengths.size());
    const int64_t elements = int64_t{kLayers} * blocks * heads.kv_heads * kTokensPerBlock * heads.head_dim;
    keys.assign(static_cast<size_t>(elements), kHalfNan);
    values = keys;
    queries = RandomHalves(rows * heads.heads * heads.head_dim, 21);
    tables.assign(static_cast<size_t>(rows) * static_cast<size_t>(table_stride), blocks - 1);
    for (int64_t row = 0; row < rows; ++row) slots.push_back(static_cast<int32_t>(rows - 1 - row));
    size_t next = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t length = lengths[static_cast<size_t>(row)];
      for (int32_t i = 0; i * kTokensPerBlock < length; ++i) tables[Entry(row, i)] = order[next++];
      for (int32_t token = 0; token < length; ++token) Fill(row, token);
    }
  }

  size_t Entry(int64_t row, int32_t index) const {
    return static_cast<size_t>(int64_t{slots[static_cast<size_t>(row)]} * table_stride + index);
  }

  size_t Place(int64_t row, int32_t token, int32_t head) const {
    const int64_t block = tables[Entry(row, token / kTokensPerBlock)];
    return static_cast<size_t>(
        (((int64_t{kLayer} * blocks + block) * heads.kv_heads + head) * kTokensPerBlock + token % kTokensPerBlock) *
        heads.head_dim);
  }

  void Fill(int64_t row, int32_t token) {
    const uint64_t seed = static_cast<uint64_t>(row * 100000 + token);
    for (int32_t head = 0; head < heads.kv_heads; ++head) {
      const std::vector<Half> key = RandomHalves(heads.head_dim, 2 * seed + 1000, 1, 0.1f * static_cast<float>(head));
      const std::vector<Half> value = RandomHalves(heads.head_dim, 2 * seed + 1001, 1, static_cast<float>(head));
      std::copy(key.begin(), key.end(), keys.begin() + static_cast<int64_t>(Place(row, token, head)));
      std::copy(value.begin(), value.end(), values.begin() + static_cast<int64_t>(Place(row, token, head)));
    }
  }

  // The expected output of one query head of a row, in float64.
  std::vector<float> Expected(int64_t row, int32_t head) const {
    const int32_t dim = heads.head_dim, kv_head = head / (heads.heads / heads.kv_heads);
    const Half* query = &queries[static_cast<size_t>((row * heads.heads + head) * dim)];
    const int32_t length = lengths[static_cast<size_t>(row)];
    std::vector<double> scores;
    for (int32_t token = 0; token < length; ++token) {
      double score = 0;
      const Half* key = &keys[Place(row, token, kv_head)];
      for (int32_t i = 0; i < dim; ++i) score += static_cast<double>(Widen(query[i])) * Widen(key[i]);
      scores.push_back(score / std::sqrt(static_cast<double>(dim)));
    }
    const double highest = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    std::vector<double> sums(static_cast<size_t>(dim));
    for (int32_t token = 0; token < length; ++token) {
      const double weight = std::exp(scores[static_cast<size_t>(token)] - highest);
      total += weight;
      const Half* value = &values[Place(row, token, kv_head)];
      for (int32_t i = 0; i < dim; ++i) sums[static_cast<size_t>(i)] += weight * Widen(value[i]);
    }
    std::vector<float> out;
    for (double sum : sums) out.push_back(static_cast<float>(sum / total));
    return out;
  }
};

// Runs the kernels on the rig's data with a grid of `grid` blocks; rows that are not written stay NaN.
std::vector<float> Attend(const Rig& rig, int32_t grid, int times, RowsOf rows_of = RowsOf::kDifferentSequences,
                          Cuts cuts = Cuts::kAnywhere) {
  const cuda::Driver* driver = *cuda::Driver::Load();
  const DeviceBuffer keys = Upload(rig.keys), values = Upload(rig.values), queries = Upload(rig.queries);
  const DeviceBuffer slots = Upload(rig.slots), lengths = Upload(rig.lengths), tables = Upload(rig.tables);
  const DeviceBuffer out = Upload(std::vector<Half>(rig.queries.size(), kHalfNan));
  const int32_t rows = static_cast<int32_t>(rig.lengths.size());
  const BlockStorage storage = {keys.data(), values.data(), kLayers, rig.blocks, kLayers * rig.blocks};
  const PagedRows paged = {slots.as<int32_t>(), lengths.as<int32_t>(), tables.as<int32_t>(), rig.table_stride, rows};
  const AttentionScratchBytes bytes = ScratchBytes(rig.heads, rows, grid);
  auto zeros = [](int64_t count) { return Upload(std::vector<char>(static_cast<size_t>(count))); };
  const DeviceBuffer row_tiles = zeros(bytes.row_tiles), pieces = zeros(bytes.pieces), parts = zeros(bytes.parts);
  const DeviceBuffer arrivals = zeros(bytes.arrivals);
  const AttentionScratch scratch = {row_tiles.as<int32_t>(), pieces.as<int4>(), parts.as<float>(),
                                    arrivals.as<int32_t>()};
  StorageMaps maps;
  EXPECT_EQ(DescribeStorage(driver->encode_tensor_map, storage, rig.heads, &maps), CUDA_SUCCESS);
  EXPECT_EQ(PrepareAttention(rig.heads), cudaSuccess);
  EXPECT_EQ(PlanAttention(paged, rig.heads, grid, cuts, scratch, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the plans are read before the kernel ahead of it has ended
  for (int i = 0; i < times; ++i) {
    EXPECT_EQ(AttendPaged(paged, rig.heads, maps, storage, kLayer, grid, scratch, queries.data(), out.data(), rows_of,
                          cuts, nullptr),
              cudaSuccess);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return WidenAll(Download<Half>(out.data(), static_cast<int64_t>(rig.queries.size())));
}

const std::vector<int32_t> kMixedLengths = {1, 15, 16, 17, 0, 64, 65, 100, 777, 1024, 33, 0, 500, 1900, 0};

class PagedAttentionOverHeads : public ::testing::TestWithParam<HeadCounts> {};
INSTANTIATE_TEST_SUITE_P(Heads64, PagedAttentionOverHeads,
                         ::testing::Values(HeadCounts{2, 2, 64}, HeadCounts{4, 2, 64}, HeadCounts{6, 2, 64},
                                           HeadCounts{4, 1, 64}, HeadCounts{10, 2, 64}, HeadCounts{6, 1, 64},
                                           HeadCounts{14, 2, 64}, HeadCounts{16, 2, 64}));
INSTANTIATE_TEST_SUITE_P(Heads128, PagedAttentionOverHeads,
                         ::testing::Values(HeadCounts{3, 3, 128}, HeadCounts{4, 2, 128}, HeadCounts{3, 1, 128},
                                           HeadCounts{8, 2, 128}, HeadCounts{5, 1, 128}, HeadCounts{12, 2, 128},
                                           HeadCounts{28, 4, 128}, HeadCounts{16, 2, 128}));

TEST_P(PagedAttentionOverHeads, GivesWhatAPlainSumGivesHoweverTheWorkIsCut) {
  SYNCOPATE_NEED_GPUS(1);
  const Rig rig(GetParam(), kMixedLengths);
  const int32_t dim = rig.heads.head_dim;
  std::vector<std::vector<float>> expected;
  for (size_t row = 0; row < rig.lengths.size(); ++row) {
    for (int32_t head = 0; rig.lengths[row] > 0 && head < rig.heads.heads; ++head) {
      expected.push_back(rig.Expected(static_cast<int64_t>(row), head));
    }
  }
  for (int32_t grid : {264, 132, 7, 1}) {
    const std::vector<float> got = Attend(rig, grid, /*times=*/1);
    size_t next = 0;
    for (size_t row = 0; row < rig.lengths.size(); ++row) {
      for (int32_t head = 0; head < rig.heads.heads; ++head) {
        const auto begin = got.begin() + (static_cast<int64_t>(row) * rig.heads.heads + head) * dim;
        const std::vector<float> one(begin, begin + dim);
        if (rig.lengths[row] == 0) {
          EXPECT_TRUE(std::all_of(one.begin(), one.end(), [](float x) { return std::isnan(x); }))
              << "an empty row was written";
        } else {
          EXPECT_LT(RelativeError(one, expected[next++]), 1e-2)
              << "grid " << grid << " row " << row << " head " << head << " length " << rig.lengths[row];
        }
      }
    }
  }
}

TEST(PagedAttentionTest, LeavesItsScratchReadyForTheNextLayer) {
  SYNCOPATE_NEED_GPUS(1);
  const Rig rig({14, 2, 64}, kMixedLengths);
  const std::vector<float> once = Attend(rig, 264, /*times=*/1), often = Attend(rig, 264, /*times=*/5);
  for (size_t i = 0; i < once.size(); ++i) {
    if (std::isnan(once[i])) continue;
    ASSERT_NEAR(once[i], often[i], 1e-2) << "element " << i;
  }
}

TEST_P(PagedAttentionOverHeads, CutBetweenRowsARowHasTheSameBitsAloneAndBesideOthers) {
  SYNCOPATE_NEED_GPUS(1);
  Rig rig(GetParam(), kMixedLengths);
  const size_t row_size = static_cast<size_t>(rig.heads.heads * rig.heads.head_dim);
  const std::vector<float> together = Attend(rig, 264, 1, RowsOf::kDifferentSequences, Cuts::kBetweenRows);
  const std::vector<float> anywhere = Attend(rig, 264, 1);
  const std::vector<int32_t> lengths = rig.lengths;
  for (size_t row = 0; row < lengths.size(); ++row) {
    if (lengths[row] == 0) continue;
    rig.lengths.assign(lengths.size(), 0);
    rig.lengths[row] = lengths[row];
    for (int32_t grid : {264, 7}) {
      const std::vector<float> alone = Attend(rig, grid, 1, RowsOf::kDifferentSequences, Cuts::kBetweenRows);
      for (size_t i = row * row_size; i < (row + 1) * row_size; ++i) {
        ASSERT_EQ(alone[i], together[i]) << "grid " << grid << " row " << row << " of " << lengths[row];
        ASSERT_NEAR(alone[i], anywhere[i], 0.05) << "row " << row;
      }
    }
  }
}

// The rows are consecutive tokens of three sequences, from any token on, with an empty row between two of the
// sequences.
TEST_P(PagedAttentionOverHeads, TokensThatAttendJointlyHaveTheBitsThatTheyHaveAlone) {
  SYNCOPATE_NEED_GPUS(1);
  struct Run {
    size_t sequence;
    int32_t first, count;
  };
  const std::vector<Run> runs = {{0, 1, 300}, {1, 130, 1}, {1, 0, 0}, {2, 777, 90}, {1, 131, 70}};
  Rig rig(GetParam(), {300, 200, 900});
  const std::vector<int32_t> sequence_slots = rig.slots;
  rig.slots.clear(), rig.lengths.clear();
  for (const Run& run : runs) {
    for (int32_t i = 0; i < std::max(run.count, 1); ++i) {
      rig.slots.push_back(sequence_slots[run.sequence]);
      rig.lengths.push_back(run.count == 0 ? 0 : run.first + i);
    }
  }
  rig.queries = RandomHalves(static_cast<int64_t>(rig.lengths.size()) * rig.heads.heads * rig.heads.head_dim, 22);
  const size_t row_size = static_cast<size_t>(rig.heads.heads * rig.heads.head_dim);
  const std::vector<float> alone = Attend(rig, 264, 1, RowsOf::kAnySequences, Cuts::kBetweenRows);
  for (int32_t grid : {264, 6, 1}) {
    const std::vector<float> jointly = Attend(rig, grid, /*times=*/2, RowsOf::kAnySequences, Cuts::kBetweenWindows);
    for (size_t i = 0; i < alone.size(); ++i) {
      const size_t row = i / row_size;
      ASSERT_EQ(std::isnan(jointly[i]), rig.lengths[row] == 0) << "row " << row;
      if (rig.lengths[row] == 0) continue;
      ASSERT_EQ(jointly[i], alone[i]) << "grid " << grid << " row " << row << " of " << rig.lengths[row];
    }
  }
}

TEST(PagedAttentionTest, AttendsFromManyTokensOfASequence) {
  SYNCOPATE_NEED_GPUS(1);
  Rig rig({12, 2, 128}, {200, 0, 0, 90});
  const std::vector<int32_t> row_slots = {rig.slots[0], rig.slots[3], rig.slots[0], rig.slots[0]};
  rig.slots = row_slots;
  rig.lengths = {200, 90, 199, 64};
  const std::vector<float> got = Attend(rig, 264, /*times=*/1, RowsOf::kAnySequences);
  for (int64_t row = 0; row < 4; ++row) {
    for (int32_t head = 0; head < 12; ++head) {
      const auto begin = got.begin() + (row * 12 + head) * 128;
      EXPECT_LT(RelativeError(std::vector<float>(begin, begin + 128), rig.Expected(row, head)), 1e-2)
          << "row " << row << " head " << head;
    }
  }
}

TEST(PagedAttentionTest, DoesNothingForEmptyRowsAlone) {
  SYNCOPATE_NEED_GPUS(1);
  Rig rig({14, 2, 64}, {0, 0, 0});
  const std::vector<float> out = Attend(rig, 264, /*times=*/2);
  EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float x) { return std::isnan(x); }));
}

TEST(PagedAttentionTest, TakesAsManyRowsAsItSays) {
  SYNCOPATE_NEED_GPUS(1);
  std::vector<int32_t> lengths;
  for (int32_t row = 0; row < kMaxAttentionRows; ++row) lengths.push_back(row % 70);
  const Rig rig({2, 1, 64}, lengths);
  const std::vector<float> got = Attend(rig, 264, /*times=*/1);
  for (size_t row = 1; row < lengths.size(); row += 13) {
    if (lengths[row] == 0) continue;
    const auto begin = got.begin() + static_cast<int64_t>(row) * 2 * 64;
    EXPECT_LT(RelativeError(std::vector<float>(begin, begin + 64), rig.Expected(static_cast<int64_t>(row), 0)), 1e-2)
        << "row " << row;
  }
}

TEST(PagedAttentionTest, RefusesHeadsItIsNotMadeFor) {
  SYNCOPATE_NEED_GPUS(1);
  EXPECT_EQ(PrepareAttention({4, 4, 16}), cudaErrorInvalidValue);
  EXPECT_EQ(PrepareAttention({9, 1, 64}), cudaErrorInvalidValue);
  EXPECT_EQ(PrepareAttention({3, 2, 64}), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace syncopate::rollouter
