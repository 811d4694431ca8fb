#include "rollouter/cuda/decode/adapter_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "model/cuda/row_kernels.h"
#include "rollouter/cuda/decode/adapter_norm.h"
#include "rollouter/cuda/decode/decode_model.h"
#include "rollouter/cuda/decode/paged_cache.h"
#include "tests/gpu/engine/half_values.h"

namespace syncopate::rollouter {
namespace {

using cuda::DeviceBuffer;
using testing::Download;
using testing::Half;
using testing::kHalfNan;
using testing::RandomHalves;
using testing::RelativeError;
using testing::Rounded;
using testing::Upload;
using testing::Widen;
using testing::WidenAll;

constexpr double kRounding = 4e-3;  // the rounding error of bf16
constexpr float kScale = 0.5f;

// A product with its adapters, on the host and on the GPU.
struct World {
  // Adapter i has outputs[i] columns; the first begins at `begin`, the next behind it. `row_sets`: see MakeRowSet.
  World(int32_t rows, int32_t columns, int32_t rank, int32_t begin, const std::vector<int32_t>& outputs,
        const std::vector<int32_t>& row_sets, int32_t places = kAdapterPlaces)
      : sets(row_sets), device_sets(Upload(row_sets)) {
    product = {.rows = rows,
               .columns = columns,
               .rank = rank,
               .scale = kScale,
               .count = static_cast<int32_t>(outputs.size()),
               .places = places,
               .sets = device_sets.as<int32_t>()};
    for (size_t i = 0; i < outputs.size(); ++i) {
      product.adapters[i] = {.begin = begin, .outputs = outputs[i]};
      begin += outputs[i];
      for (int32_t set = 0; set < kDecodedAdapterSets; ++set) {
        b.push_back(RandomHalves(int64_t{outputs[i]} * rank, 100 + 3 * i + static_cast<uint64_t>(set), 0.2f));
        device_b.push_back(Upload(b.back()));
        product.adapters[i].b[set] = device_b.back().data();
      }
    }
    y = RandomHalves(int64_t{rows} * product.stride(), 7);
    device_y = Upload(y);
  }

  // y with what the adapters add, without x a^T; float64 sums.
  std::vector<double> Added() const {
    std::vector<double> sums;
    for (int32_t row = 0; row < product.rows; ++row) {
      const auto from = y.begin() + int64_t{row} * product.stride();
      std::vector<double> numbers;
      for (int32_t c = 0; c < product.columns; ++c) numbers.push_back(Widen(from[c]));
      const int32_t row_set = sets[static_cast<size_t>(row)], set = row_set % kRowSets, place = row_set / kRowSets;
      for (int32_t i = 0; row_set >= 0 && i < product.count; ++i) {
        const auto inner = from + product.columns + (place * product.count + i) * product.rank;
        const std::vector<Half>& outer = b[static_cast<size_t>(i * kDecodedAdapterSets + set)];
        for (int32_t c = 0; c < product.adapters[i].outputs; ++c) {
          double sum = 0;
          for (int32_t k = 0; k < product.rank; ++k)
            sum += double{Widen(inner[k])} * Widen(outer[c * product.rank + k]);
          numbers[static_cast<size_t>(product.adapters[i].begin + c)] += kScale * sum;
        }
      }
      sums.insert(sums.end(), numbers.begin(), numbers.end());
    }
    return sums;
  }

  std::vector<int32_t> sets;
  std::vector<Half> y;
  std::vector<std::vector<Half>> b;  // by adapter and set
  DeviceBuffer device_sets, device_y;
  std::vector<DeviceBuffer> device_b;
  AdaptedProduct product;
};

// Rows without an adapter, of one set in place 0, and with two places of another one in place 1.
const std::vector<int32_t> kRowKinds = {-1, MakeRowSet(2, 0), MakeRowSet(0, 1)};

std::vector<int32_t> MixedSets(int32_t rows, int32_t places = kAdapterPlaces) {
  std::vector<int32_t> sets;
  for (int32_t row = 0; row < rows; ++row) sets.push_back(kRowKinds[static_cast<size_t>(row * 7 % 11 % (places + 1))]);
  return sets;
}

struct Case {
  int32_t rows = 0;
  int32_t rank = 0;
  int32_t places = kAdapterPlaces;
};
std::string Name(const ::testing::TestParamInfo<Case>& info) {
  return "Rows" + std::to_string(info.param.rows) + "Rank" + std::to_string(info.param.rank) + "Places" +
         std::to_string(info.param.places);
}
class AdapterKernels : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shapes, AdapterKernels,
                         ::testing::Values(Case{1, 8}, Case{16, 32}, Case{37, 24}, Case{256, 32}, Case{300, 16},
                                           Case{40, 72}, Case{65, 256}, Case{5000, 32}, Case{300, 16, 1},
                                           Case{5000, 32, 1}, Case{40, 72, 1},
                                           // More tiles of a warp than it has stages.
                                           Case{20000, 32}, Case{20000, 40}),
                         Name);

TEST_P(AdapterKernels, AddEachRowsOwnAdapterAndTheResidual) {
  SYNCOPATE_NEED_GPUS(1);
  const auto [rows, rank, places] = GetParam();
  const int32_t columns = 216;
  // The adapters have columns [8, 208), in parts that are no multiples of a tile.
  const World world(rows, columns, rank, 8, {72, 128}, MixedSets(rows, places), places);
  const std::vector<Half> residual = RandomHalves(int64_t{rows} * columns, 8);
  const DeviceBuffer out = Upload(residual);
  ASSERT_EQ(AddAdapters(world.product, world.device_y.data(), out.data(), out.data(), columns, nullptr), cudaSuccess);
  std::vector<double> expected = world.Added();
  for (int64_t i = 0; i < int64_t{rows} * columns; ++i) {
    const int64_t column = i % columns;
    const double before = Widen(residual[static_cast<size_t>(i)]);
    // Columns without an adapter keep what they had.
    double& number = expected[static_cast<size_t>(i)];
    number = column < 8 || column >= 208 ? before : number + before;
  }
  EXPECT_LT(RelativeError(WidenAll(Download<Half>(out.data(), int64_t{rows} * columns)), expected), kRounding);

  const DeviceBuffer alone = Upload(std::vector<Half>(static_cast<size_t>(rows * columns), kHalfNan));
  ASSERT_EQ(AddAdapters(world.product, world.device_y.data(), nullptr, alone.data(), columns, nullptr), cudaSuccess);
  const std::vector<Half> without = Download<Half>(alone.data(), int64_t{rows} * columns);
  const std::vector<double> added = world.Added();
  for (size_t i = 0; i < without.size(); ++i) {
    const int32_t column = static_cast<int32_t>(i) % columns;
    if (column < 8 || column >= 208) {
      ASSERT_EQ(without[i], kHalfNan);
    } else {
      ASSERT_NEAR(Widen(without[i]), added[i], 0.01 * std::abs(added[i]) + 1e-2) << "element " << i;
    }
  }
}

TEST_P(AdapterKernels, ActivateWithTheAdaptersOfBothHalvesOrOfOne) {
  SYNCOPATE_NEED_GPUS(1);
  const auto [rows, rank, places] = GetParam();
  const int32_t width = 328;
  for (const auto& [begin, outputs] : {std::pair(0, std::vector<int32_t>{width, width}),
                                       {0, std::vector<int32_t>{width}},
                                       {width, std::vector<int32_t>{width}}}) {
    const World world(rows, 2 * width, rank, begin, outputs, MixedSets(rows, places), places);
    const DeviceBuffer activated = Upload(std::vector<Half>(static_cast<size_t>(rows * width), kHalfNan));
    ASSERT_EQ(AddAdaptersAndSwiGlu(world.product, width, world.device_y.data(), activated.data(), nullptr),
              cudaSuccess);
    const std::vector<double> added = world.Added();
    std::vector<float> expected;
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t c = 0; c < width; ++c) {
        const float gate = Rounded(static_cast<float>(added[static_cast<size_t>(2 * row * width + c)]));
        const float up = Rounded(static_cast<float>(added[static_cast<size_t>((2 * row + 1) * width + c)]));
        expected.push_back(Rounded(gate / (1 + std::exp(-gate))) * up);
      }
    }
    EXPECT_LT(RelativeError(WidenAll(Download<Half>(activated.data(), int64_t{rows} * width)), expected), kRounding);
  }
}

// The bits of a row whose set stays, when the sets of all other rows change.
TEST_P(AdapterKernels, GiveARowTheSameBitsWhateverSetsOtherRowsHave) {
  SYNCOPATE_NEED_GPUS(1);
  const auto [rows, rank, places] = GetParam();
  const int32_t width = 160;
  const std::vector<int32_t> mixed = MixedSets(rows, places);
  const auto compute = [&](const std::vector<int32_t>& sets) {
    const World world(rows, 2 * width, rank, 0, {width, width}, sets, places);
    const DeviceBuffer activated = Upload(RandomHalves(int64_t{rows} * width, 9));
    const DeviceBuffer sums = Upload(RandomHalves(int64_t{rows} * 2 * width, 10));
    EXPECT_EQ(AddAdaptersAndSwiGlu(world.product, width, world.device_y.data(), activated.data(), nullptr),
              cudaSuccess);
    EXPECT_EQ(AddAdapters(world.product, world.device_y.data(), nullptr, sums.data(), 2 * width, nullptr), cudaSuccess);
    return std::pair(Download<Half>(activated.data(), int64_t{rows} * width),
                     Download<Half>(sums.data(), int64_t{rows} * 2 * width));
  };
  const auto together = compute(mixed);
  for (int32_t kind = 0; kind <= places; ++kind) {
    const int32_t set = kRowKinds[static_cast<size_t>(kind)];
    const auto alone = compute(std::vector<int32_t>(static_cast<size_t>(rows), set));
    for (int32_t row = 0; row < rows; ++row) {
      if (mixed[static_cast<size_t>(row)] != set) continue;
      const auto is_equal = [row](const std::vector<Half>& a, const std::vector<Half>& b, int32_t columns) {
        return std::equal(a.begin() + int64_t{row} * columns, a.begin() + int64_t{row + 1} * columns,
                          b.begin() + int64_t{row} * columns);
      };
      ASSERT_TRUE(is_equal(together.first, alone.first, width)) << "row " << row << " of kind " << kind;
      ASSERT_TRUE(is_equal(together.second, alone.second, 2 * width)) << "row " << row << " of kind " << kind;
    }
  }
}

TEST(AdapterKernelsTest, RefuseProductsTheyAreNotMadeFor) {
  SYNCOPATE_NEED_GPUS(1);
  const World world(4, 64, 8, 0, {64}, MixedSets(4));
  const DeviceBuffer out = Upload(RandomHalves(4 * 64, 1));
  void* const y = world.device_y.data();
  const auto add = [&](const AdaptedProduct& product) {
    return AddAdapters(product, y, nullptr, out.data(), 64, nullptr);
  };
  EXPECT_EQ(add(world.product), cudaSuccess);
  AdaptedProduct odd_rank = world.product, odd_begin = world.product, no_sets = world.product, places = world.product;
  places.places = kAdapterPlaces + 1;
  odd_rank.rank = 12;
  odd_begin.adapters[0].begin = 4;
  no_sets.sets = nullptr;
  EXPECT_EQ(add(odd_rank), cudaErrorInvalidValue);
  EXPECT_EQ(add(odd_begin), cudaErrorInvalidValue);
  EXPECT_EQ(add(no_sets), cudaErrorInvalidValue);
  EXPECT_EQ(add(places), cudaErrorInvalidValue);
  EXPECT_EQ(AddAdapters(world.product, y, nullptr, y, 64, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(AddAdaptersAndSwiGlu(world.product, 32, y, out.data(), nullptr), cudaErrorInvalidValue)
      << "an adapter of both halves";
}

struct NormCase {
  int32_t rows = 0;
  int32_t hidden = 0;
  int32_t rank = 0;
};
class AdaptedNorm : public ::testing::TestWithParam<NormCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, AdaptedNorm,
                         ::testing::Values(NormCase{1056, 896, 32}, NormCase{1056, 64, 8}, NormCase{2055, 1536, 32},
                                           NormCase{2048, 1536, 24}, NormCase{5000, 896, 24}, NormCase{3001, 1000, 16},
                                           NormCase{1101, 2048, 32}, NormCase{1100, 1032, 8},
                                           // More tiles of rows than the most of a block for each multiprocessor.
                                           NormCase{70000, 72, 32}));

// Sets of rows of one place: most have the set, some have none.
std::vector<int32_t> OneSet(int32_t rows) { return MixedSets(rows, /*places=*/1); }

// What AddAdaptersAndNorm, or the two kernels that it replaces, make of the same numbers: the residual and its norm.
std::pair<std::vector<Half>, std::vector<Half>> AddAndNorm(const World& world, bool at_once) {
  const int32_t rows = world.product.rows, hidden = world.product.columns;
  const DeviceBuffer residual = Upload(RandomHalves(int64_t{rows} * hidden, 8));
  const DeviceBuffer normed =
      Upload(std::vector<Half>(static_cast<size_t>(rows) * static_cast<size_t>(hidden), kHalfNan));
  const DeviceBuffer weight = Upload(RandomHalves(hidden, 9, 0.1f, 1));
  const model::NormShape shape = {rows, hidden, 1e-6f};
  void* const y = world.device_y.data();
  if (at_once) {
    EXPECT_EQ(AddAdaptersAndNorm(world.product, shape, y, weight.data(), residual.data(), normed.data(), nullptr),
              cudaSuccess);
  } else {
    EXPECT_EQ(AddAdapters(world.product, y, residual.data(), residual.data(), hidden, nullptr), cudaSuccess);
    EXPECT_EQ(model::AddAndNorm(shape, nullptr, weight.data(), residual.data(), normed.data(), nullptr), cudaSuccess);
  }
  return {Download<Half>(residual.data(), int64_t{rows} * hidden),
          Download<Half>(normed.data(), int64_t{rows} * hidden)};
}

TEST_P(AdaptedNorm, AddsToTheResidualAndNormsAsTwoKernelsDo) {
  SYNCOPATE_NEED_GPUS(1);
  const auto [rows, hidden, rank] = GetParam();
  const World world(rows, hidden, rank, 0, {hidden}, OneSet(rows), /*places=*/1);
  ASSERT_TRUE(FitsAddAdaptersAndNorm(world.product));
  const auto once = AddAndNorm(world, true), twice = AddAndNorm(world, false);
  EXPECT_TRUE(once.first == twice.first) << "the residual differs";
  EXPECT_LT(RelativeError(WidenAll(once.second), WidenAll(twice.second)), 1e-4) << "the norm differs";
  int64_t differ = 0;
  for (size_t i = 0; i < once.second.size(); ++i) differ += once.second[i] != twice.second[i];
  EXPECT_LT(static_cast<double>(differ), 1e-3 * static_cast<double>(once.second.size()));
}

// Also the bits of a row without an adapter, which are those of rows of which none has one.
TEST_P(AdaptedNorm, GivesARowTheSameBitsWhateverSetsOtherRowsHave) {
  SYNCOPATE_NEED_GPUS(1);
  const auto [rows, hidden, rank] = GetParam();
  const std::vector<int32_t> mixed = OneSet(rows);
  const auto together = AddAndNorm(World(rows, hidden, rank, 0, {hidden}, mixed, 1), true);
  for (const int32_t set : {kRowKinds[0], kRowKinds[1]}) {
    const std::vector<int32_t> same(static_cast<size_t>(rows), set);
    const auto alone = AddAndNorm(World(rows, hidden, rank, 0, {hidden}, same, 1), true);
    for (int64_t row = 0; row < rows; ++row) {
      if (mixed[static_cast<size_t>(row)] != set) continue;
      const auto is_equal = [&](const std::vector<Half>& a, const std::vector<Half>& b) {
        return std::equal(a.begin() + row * hidden, a.begin() + (row + 1) * hidden, b.begin() + row * hidden);
      };
      ASSERT_TRUE(is_equal(together.first, alone.first)) << "row " << row << " of set " << set;
      ASSERT_TRUE(is_equal(together.second, alone.second)) << "row " << row << " of set " << set;
    }
  }
}

TEST(AdaptedNormTest, RefusesProductsThatNeedTwoKernels) {
  SYNCOPATE_NEED_GPUS(1);
  const int32_t rows = 1056;
  const auto fits = [&](int32_t some_rows, int32_t hidden, int32_t rank, int32_t begin,
                        const std::vector<int32_t>& outputs, int32_t places = 1) {
    return FitsAddAdaptersAndNorm(World(some_rows, hidden, rank, begin, outputs, OneSet(some_rows), places).product);
  };
  EXPECT_TRUE(fits(rows, 64, 32, 0, {64}));
  EXPECT_FALSE(fits(rows - 1, 64, 32, 0, {64})) << "few rows";
  EXPECT_FALSE(fits(rows, 64, 40, 0, {64})) << "a high rank";
  EXPECT_FALSE(fits(rows, 2056, 8, 0, {2056})) << "many columns";
  EXPECT_FALSE(fits(rows, 64, 32, 32, {32})) << "an adapter of some columns";
  EXPECT_FALSE(fits(rows, 64, 32, 0, {32, 32})) << "two adapters";
  EXPECT_FALSE(fits(rows, 64, 32, 0, {64}, kAdapterPlaces)) << "two places";
  const World world(rows, 64, 32, 0, {64}, OneSet(rows), 1);
  const DeviceBuffer out = Upload(RandomHalves(int64_t{rows} * 64, 1));
  EXPECT_EQ(AddAdaptersAndNorm(world.product, {rows, 56, 1e-6f}, world.device_y.data(), out.data(), out.data(),
                               out.data(), nullptr),
            cudaErrorInvalidValue)
      << "a norm of fewer columns";
}

struct AppendCase {
  HeadCounts heads;
  bool norm = false;
  std::vector<int32_t> outputs;  // of the adapters, from `begin` on
  int32_t begin = 0;
  int32_t rows = 40;
  int32_t rank = 24;
};
class AdaptedAppend : public ::testing::TestWithParam<AppendCase> {};
INSTANTIATE_TEST_SUITE_P(Heads, AdaptedAppend,
                         ::testing::Values(AppendCase{{14, 2, 64}, false, {14 * 64, 2 * 64, 2 * 64}, 0},
                                           AppendCase{{16, 8, 128}, true, {16 * 128, 8 * 128, 8 * 128}, 0},
                                           AppendCase{{4, 2, 64}, true, {2 * 64}, 6 * 64},  // of the values alone
                                           AppendCase{{12, 2, 128}, false, {12 * 128, 2 * 128}, 0},
                                           // More tiles of a warp than it has stages.
                                           AppendCase{{14, 2, 64}, false, {14 * 64, 2 * 64, 2 * 64}, 0, 6800},
                                           AppendCase{{28, 4, 128}, true, {28 * 128, 4 * 128, 4 * 128}, 0, 2000},
                                           AppendCase{{16, 8, 128}, true, {16 * 128, 8 * 128, 8 * 128}, 0, 2000, 72}));

// What is appended is what the kernel without adapters appends of a product to which they have been added.
TEST_P(AdaptedAppend, AddsRotatesAndWritesTheRowsOwnPlacesOnly) {
  SYNCOPATE_NEED_GPUS(1);
  const auto [heads, with_norm, outputs, begin, rows, rank] = GetParam();
  const int32_t dim = heads.head_dim, width = (heads.heads + 2 * heads.kv_heads) * dim;
  const int32_t blocks = rows + 1, layers = 2, layer = 1;
  std::vector<int32_t> slots, lengths, tables;
  for (int32_t row = 0; row < rows; ++row) {
    slots.push_back(rows - 1 - row);
    lengths.push_back(row * 5 % 32);  // some rows are empty
    tables.insert(tables.end(), {row, row + 1});
  }
  // A slot has two blocks, of which its row writes one.
  for (int32_t row = 0; row < rows; ++row) {
    const auto slot = static_cast<size_t>(slots[static_cast<size_t>(row)]);
    tables[2 * slot] = tables[2 * slot + 1] = row;
  }
  const World world(rows, width, rank, begin, outputs, MixedSets(rows));
  std::vector<Half> added;
  for (double number : world.Added()) added.push_back(testing::Narrow(static_cast<float>(number)));
  const DeviceBuffer q_norm = Upload(RandomHalves(dim, 12, 0.1f, 1)), k_norm = Upload(RandomHalves(dim, 13, 0.1f, 1));
  const DeviceBuffer angles = Upload(RotaryTable(64, dim, 10000));
  const DeviceBuffer row_slots = Upload(slots), row_lengths = Upload(lengths), row_tables = Upload(tables);
  const PagedRows paged = {row_slots.as<int32_t>(), row_lengths.as<int32_t>(), row_tables.as<int32_t>(), 2, rows};
  const int64_t elements = int64_t{layers} * blocks * heads.kv_heads * kTokensPerBlock * dim;
  const auto append = [&](const void* qkv, const AdaptedProduct* adapters) {
    const DeviceBuffer keys = Upload(RandomHalves(elements, 14)), values = Upload(RandomHalves(elements, 15));
    const DeviceBuffer queries = Upload(RandomHalves(int64_t{rows} * heads.heads * dim, 16));
    const AppendInputs inputs = {.qkv = qkv,
                                 .q_norm = with_norm ? q_norm.data() : nullptr,
                                 .k_norm = with_norm ? k_norm.data() : nullptr,
                                 .epsilon = 1e-6f,
                                 .rotations = angles.as<float>(),
                                 .adapters = adapters};
    EXPECT_EQ(RotateAndAppend(paged, heads, inputs, {keys.data(), values.data(), layers, blocks}, layer, queries.data(),
                              nullptr),
              cudaSuccess);
    return std::vector<std::vector<float>>{WidenAll(Download<Half>(queries.data(), int64_t{rows} * heads.heads * dim)),
                                           WidenAll(Download<Half>(keys.data(), elements)),
                                           WidenAll(Download<Half>(values.data(), elements))};
  };
  const DeviceBuffer dense = Upload(added);
  const auto expected = append(dense.data(), nullptr), results = append(world.device_y.data(), &world.product);
  for (size_t which = 0; which < expected.size(); ++which) {
    EXPECT_LT(RelativeError(results[which], expected[which]), kRounding) << "of queries, keys and values: " << which;
    for (size_t i = 0; i < expected[which].size(); ++i) {
      // A rounding error may differ by the last bit before the norm and after it.
      ASSERT_NEAR(results[which][i], expected[which][i], 0.03 * std::abs(expected[which][i]) + 3e-2)
          << "of queries, keys and values: " << which << ", element " << i;
    }
  }
}

}  // namespace
}  // namespace syncopate::rollouter
