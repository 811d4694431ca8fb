#include "model/cuda/row_kernels.h"

#include <gtest/gtest.h>

#include "rollouter/cuda/decode/decode_model.h"
#include "rollouter/cuda/decode/paged_cache.h"
#include "tests/gpu/engine/half_values.h"

namespace syncopate::rollouter {
namespace {

using cuda::DeviceBuffer;
using testing::Download;
using testing::Half;
using testing::RandomHalves;
using testing::RelativeError;
using testing::Rounded;
using testing::Upload;
using testing::Widen;
using testing::WidenAll;

constexpr float kEpsilon = 1e-6f;
constexpr double kRounding = 4e-3;  // the rounding error of bf16

// Computes like model/transformer.cc: the scaled row is rounded, then its product with the weight.
std::vector<float> RmsNorm(const std::vector<float>& x, const float* weight) {
  double squares = 0;
  for (float value : x) squares += static_cast<double>(value) * value;
  const float scale = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(x.size()) + kEpsilon));
  std::vector<float> normed;
  for (size_t i = 0; i < x.size(); ++i) normed.push_back(Rounded(Rounded(x[i] * scale) * weight[i]));
  return normed;
}

std::vector<float> NormRows(const std::vector<float>& rows, const std::vector<Half>& weight) {
  const std::vector<float> weights = WidenAll(weight);
  std::vector<float> normed;
  for (size_t begin = 0; begin < rows.size(); begin += weight.size()) {
    const std::vector<float> row(rows.begin() + static_cast<int64_t>(begin),
                                 rows.begin() + static_cast<int64_t>(begin + weight.size()));
    for (float value : RmsNorm(row, weights.data())) normed.push_back(value);
  }
  return normed;
}

class RowKernelsOverHidden : public ::testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Hidden, RowKernelsOverHidden, ::testing::Values(8, 264, 896, 3584, model::kMaxHidden));

TEST_P(RowKernelsOverHidden, EmbedsGivenAndDrawnTokens) {
  SYNCOPATE_NEED_GPUS(1);
  const int32_t hidden = GetParam();
  const std::vector<Half> table = RandomHalves(5 * hidden, 1), weight = RandomHalves(hidden, 2, 0.1f, 1);
  // Row 0 takes the given token 4; row 1 takes token 3, which slot 2 has drawn; row 2 takes token 1, which slot 0 has
  // drawn.
  const DeviceBuffer given = Upload<int32_t>({4, -1, -1}), slots = Upload<int32_t>({1, 2, 0});
  const DeviceBuffer drawn = Upload<int32_t>({1, 2, 3});
  const DeviceBuffer tokens = Upload(table), weights = Upload(weight);
  const DeviceBuffer residual = Upload(RandomHalves(3 * hidden, 3)), normed = Upload(RandomHalves(3 * hidden, 4));
  const model::TokenSource source = {given.as<int32_t>(), slots.as<int32_t>(), drawn.as<int32_t>()};
  ASSERT_EQ(model::EmbedAndNorm({3, hidden, kEpsilon}, source, /*positions=*/{}, tokens.data(), weights.data(),
                                residual.data(), normed.data(), nullptr),
            cudaSuccess);
  std::vector<Half> expected;
  for (int32_t token : {4, 3, 1}) {
    expected.insert(expected.end(), table.begin() + token * hidden, table.begin() + (token + 1) * hidden);
  }
  EXPECT_EQ(Download<Half>(residual.data(), 3 * hidden), expected);
  EXPECT_LT(RelativeError(WidenAll(Download<Half>(normed.data(), 3 * hidden)), NormRows(WidenAll(expected), weight)),
            kRounding);
}

TEST_P(RowKernelsOverHidden, AddsWhatAPositionAddsToItsToken) {
  SYNCOPATE_NEED_GPUS(1);
  const int32_t hidden = GetParam();
  const std::vector<Half> table = RandomHalves(5 * hidden, 1), places = RandomHalves(4 * hidden, 9);
  const std::vector<Half> weight = RandomHalves(hidden, 2, 0.1f, 1);
  // The third row is empty.
  const DeviceBuffer given = Upload<int32_t>({4, 0, 1}), lengths = Upload<int32_t>({4, 1, 0});
  const DeviceBuffer tokens = Upload(table), positions = Upload(places), weights = Upload(weight);
  const DeviceBuffer residual = Upload(RandomHalves(3 * hidden, 3)), normed = Upload(RandomHalves(3 * hidden, 4));
  ASSERT_EQ(model::EmbedAndNorm({3, hidden, kEpsilon}, {given.as<int32_t>()}, {lengths.as<int32_t>(), positions.data()},
                                tokens.data(), weights.data(), residual.data(), normed.data(), nullptr),
            cudaSuccess);
  std::vector<float> sums;
  for (const auto& [token, place] : {std::pair(4, 3), {0, 0}, {1, 0}}) {
    for (int32_t i = 0; i < hidden; ++i) {
      sums.push_back(Rounded(Widen(table[static_cast<size_t>(token * hidden + i)]) +
                             Widen(places[static_cast<size_t>(place * hidden + i)])));
    }
  }
  EXPECT_EQ(WidenAll(Download<Half>(residual.data(), 3 * hidden)), sums);
  EXPECT_LT(RelativeError(WidenAll(Download<Half>(normed.data(), 3 * hidden)), NormRows(sums, weight)), kRounding);
}

TEST_P(RowKernelsOverHidden, AddsAndNorms) {
  SYNCOPATE_NEED_GPUS(1);
  const int32_t hidden = GetParam();
  const std::vector<Half> before = RandomHalves(3 * hidden, 5), added = RandomHalves(3 * hidden, 6);
  const std::vector<Half> weight = RandomHalves(hidden, 7, 0.1f, 1);
  const DeviceBuffer weights = Upload(weight), more = Upload(added), residual = Upload(before);
  const DeviceBuffer normed = Upload(RandomHalves(3 * hidden, 8));
  ASSERT_EQ(
      model::AddAndNorm({3, hidden, kEpsilon}, more.data(), weights.data(), residual.data(), normed.data(), nullptr),
      cudaSuccess);
  std::vector<float> sums;
  for (size_t i = 0; i < before.size(); ++i) sums.push_back(Rounded(Widen(before[i]) + Widen(added[i])));
  EXPECT_EQ(WidenAll(Download<Half>(residual.data(), 3 * hidden)), sums);
  EXPECT_LT(RelativeError(WidenAll(Download<Half>(normed.data(), 3 * hidden)), NormRows(sums, weight)), kRounding);

  ASSERT_EQ(model::AddAndNorm({3, hidden, kEpsilon}, nullptr, weights.data(), residual.data(), normed.data(), nullptr),
            cudaSuccess);
  EXPECT_EQ(WidenAll(Download<Half>(residual.data(), 3 * hidden)), sums) << "nothing to add, and the residual changed";
  EXPECT_LT(RelativeError(WidenAll(Download<Half>(normed.data(), 3 * hidden)), NormRows(sums, weight)), kRounding);
}

TEST_P(RowKernelsOverHidden, GathersRows) {
  SYNCOPATE_NEED_GPUS(1);
  const int32_t hidden = GetParam();
  const std::vector<Half> rows = RandomHalves(4 * hidden, 17);
  const DeviceBuffer from = Upload(rows), which = Upload<int32_t>({3, 0, 3}), to = Upload(RandomHalves(3 * hidden, 18));
  ASSERT_EQ(model::GatherRows({3, hidden, kEpsilon}, which.as<int32_t>(), from.data(), to.data(), nullptr),
            cudaSuccess);
  std::vector<Half> expected;
  for (int32_t row : {3, 0, 3}) {
    expected.insert(expected.end(), rows.begin() + row * hidden, rows.begin() + (row + 1) * hidden);
  }
  EXPECT_EQ(Download<Half>(to.data(), 3 * hidden), expected);
}

TEST_P(RowKernelsOverHidden, GatesWithSilu) {
  SYNCOPATE_NEED_GPUS(1);
  const int32_t width = GetParam();
  const std::vector<Half> gate_up = RandomHalves(3 * 2 * width, 9, 4);
  const DeviceBuffer from = Upload(gate_up), activated = Upload(RandomHalves(3 * width, 10));
  ASSERT_EQ(model::SwiGlu(3, width, from.data(), activated.data(), nullptr), cudaSuccess);
  std::vector<float> expected;
  for (int row = 0; row < 3; ++row) {
    for (int i = 0; i < width; ++i) {
      const float gate = Widen(gate_up[static_cast<size_t>((2 * row) * width + i)]);
      const float up = Widen(gate_up[static_cast<size_t>((2 * row + 1) * width + i)]);
      expected.push_back(Rounded(gate / (1 + std::exp(-gate))) * up);
    }
  }
  EXPECT_LT(RelativeError(WidenAll(Download<Half>(activated.data(), 3 * width)), expected), kRounding);
}

TEST(RowKernelsTest, RefuseShapesTheyAreNotMadeFor) {
  SYNCOPATE_NEED_GPUS(1);
  EXPECT_EQ(model::AddAndNorm({1, 12, kEpsilon}, nullptr, nullptr, nullptr, nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(model::AddAndNorm({1, model::kMaxHidden + 8, kEpsilon}, nullptr, nullptr, nullptr, nullptr, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(model::SwiGlu(1, 12, nullptr, nullptr, nullptr), cudaErrorInvalidValue);
}

struct AppendCase {
  HeadCounts heads;
  bool norm = false;
};
class AppendOverHeads : public ::testing::TestWithParam<AppendCase> {};
INSTANTIATE_TEST_SUITE_P(Heads, AppendOverHeads,
                         ::testing::Values(AppendCase{{14, 2, 64}, false}, AppendCase{{14, 2, 64}, true},
                                           AppendCase{{28, 4, 128}, false}, AppendCase{{16, 8, 128}, true},
                                           AppendCase{{2, 1, 32}, true}, AppendCase{{4, 2, 256}, true}));

// The expected head of a row after norm and rotation.
std::vector<float> RotatedHead(const std::vector<float>& head, const std::vector<Half>& norm,
                               const std::vector<float>& rotations, int position) {
  std::vector<float> x = norm.empty() ? head : RmsNorm(head, WidenAll(norm).data());
  const size_t half = head.size() / 2;
  std::vector<float> rotated(head.size());
  for (size_t i = 0; i < half; ++i) {
    const float* angle = &rotations[2 * (static_cast<size_t>(position) * half + i)];
    rotated[i] = x[i] * angle[0] - x[half + i] * angle[1];
    rotated[half + i] = x[half + i] * angle[0] + x[i] * angle[1];
  }
  return rotated;
}

TEST_P(AppendOverHeads, RotatesAndWritesTheRowsOwnPlacesOnly) {
  SYNCOPATE_NEED_GPUS(1);
  const auto [heads, with_norm] = GetParam();
  const int dim = heads.head_dim;
  const std::vector<int32_t> slots = {0, 4, 2, 3, 1}, lengths = {1, 16, 0, 17, 40};
  // Three entries for each slot.
  const std::vector<int32_t> tables = {3, 9, 9, /**/ 9, 9, 1, /**/ 9, 9, 9, /**/ 9, 5, 9, /**/ 0, 9, 9};
  const int rows = 5, blocks = 6, layers = 2, layer = 1, width = (heads.heads + 2 * heads.kv_heads) * dim;
  const std::vector<Half> qkv = RandomHalves(rows * width, 11);
  const std::vector<Half> q_norm = with_norm ? RandomHalves(dim, 12, 0.1f, 1) : std::vector<Half>();
  const std::vector<Half> k_norm = with_norm ? RandomHalves(dim, 13, 0.1f, 1) : std::vector<Half>();
  const std::vector<float> rotations = RotaryTable(64, dim, 10000);
  const int64_t elements = int64_t{layers} * blocks * heads.kv_heads * kTokensPerBlock * dim;
  const std::vector<Half> old_keys = RandomHalves(elements, 14), old_values = RandomHalves(elements, 15);
  const DeviceBuffer keys = Upload(old_keys), values = Upload(old_values), rows_qkv = Upload(qkv);
  const DeviceBuffer q_norms = Upload(q_norm), k_norms = Upload(k_norm), angles = Upload(rotations);
  const DeviceBuffer row_slots = Upload(slots), row_lengths = Upload(lengths), row_tables = Upload(tables);
  const DeviceBuffer queries = Upload(RandomHalves(rows * heads.heads * dim, 16));
  const PagedRows paged = {row_slots.as<int32_t>(), row_lengths.as<int32_t>(), row_tables.as<int32_t>(), 3, rows};
  const AppendInputs inputs = {rows_qkv.data(), with_norm ? q_norms.data() : nullptr,
                               with_norm ? k_norms.data() : nullptr, kEpsilon, angles.as<float>()};
  ASSERT_EQ(RotateAndAppend(paged, heads, inputs, {keys.data(), values.data(), layers, blocks}, layer, queries.data(),
                            nullptr),
            cudaSuccess);

  const std::vector<float> all_queries = WidenAll(Download<Half>(queries.data(), rows * heads.heads * dim));
  std::vector<float> expected_keys = WidenAll(old_keys), expected_values = WidenAll(old_values);
  for (int row = 0; row < rows; ++row) {
    const int position = lengths[static_cast<size_t>(row)] - 1;
    if (position < 0) continue;
    auto head_of = [&](int head) {
      const auto begin = qkv.begin() + row * width + head * dim;
      return WidenAll(std::vector<Half>(begin, begin + dim));
    };
    for (int head = 0; head < heads.heads; ++head) {
      const auto begin = all_queries.begin() + (row * heads.heads + head) * dim;
      EXPECT_LT(RelativeError(std::vector<float>(begin, begin + dim),
                              RotatedHead(head_of(head), q_norm, rotations, position)),
                kRounding)
          << "row " << row << " head " << head;
    }
    const int block = tables[static_cast<size_t>(slots[static_cast<size_t>(row)] * 3 + position / kTokensPerBlock)];
    for (int head = 0; head < heads.kv_heads; ++head) {
      const int64_t place =
          (((int64_t{layer} * blocks + block) * heads.kv_heads + head) * kTokensPerBlock + position % kTokensPerBlock) *
          dim;
      const std::vector<float> key = RotatedHead(head_of(heads.heads + head), k_norm, rotations, position);
      const std::vector<float> value = head_of(heads.heads + heads.kv_heads + head);
      std::copy(key.begin(), key.end(), expected_keys.begin() + place);
      std::copy(value.begin(), value.end(), expected_values.begin() + place);
    }
  }
  EXPECT_EQ(WidenAll(Download<Half>(values.data(), elements)), expected_values);
  const std::vector<float> new_keys = WidenAll(Download<Half>(keys.data(), elements));
  for (size_t i = 0; i < new_keys.size(); ++i) {
    ASSERT_NEAR(new_keys[i], expected_keys[i], 0.01 * std::abs(expected_keys[i]) + 2e-3) << "element " << i;
  }
}

}  // namespace
}  // namespace syncopate::rollouter
