#include "model/host_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/philox.h"

// The test does not use libtorch, so that sanitizers check the loops: every array is exactly as long as its contract
// says. ops_test checks that gradients equal those of autograd.
namespace syncopate::model {
namespace {

using Numbers = std::vector<float>;

// Widths around the sixteen numbers that the loops take at a time.
constexpr int64_t kWidths[] = {1, 3, 15, 16, 17, 33, 64};
constexpr int64_t kRows = 5;

Numbers Draw(int64_t count, uint64_t seed) {
  Numbers drawn(static_cast<size_t>(count));
  for (size_t i = 0; i < drawn.size(); ++i) {
    drawn[i] = static_cast<float>(Philox4x32(seed, i)[0] % 2001) / 500.0f - 2.0f;
  }
  return drawn;
}

void ExpectClose(const Numbers& found, const Numbers& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 2e-5 * (1 + std::abs(expected[i]))) << i;
}

struct Kind {
  std::string name;
  const HostRows* rows;
};

// A kind that needs AVX2 is tested only on processors with AVX2.
std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {{"Plain", &PlainHostRows()}};
  if (&FastestHostRows() == &Avx2HostRows()) kinds.push_back({"Avx2", &Avx2HostRows()});
  return kinds;
}

class HostRowsTest : public ::testing::TestWithParam<Kind> {
 protected:
  const HostRows& rows_ = *GetParam().rows;
};
INSTANTIATE_TEST_SUITE_P(Kinds, HostRowsTest, ::testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(HostRowsTest, NormIsTheDefinitionsAndItsBackwardGivesTheRowsAgain) {
  for (const int64_t columns : kWidths) {
    const Numbers x = Draw(kRows * columns, 1), residual = Draw(kRows * columns, 2), weight = Draw(columns, 3);
    Numbers sum(x.size()), y(x.size()), rstd(kRows), expected(x.size());
    rows_.Norm(x.data(), residual.data(), weight.data(), 1e-6f, kRows, columns, sum.data(), y.data(), rstd.data());
    for (int64_t row = 0; row < kRows; ++row) {
      double squares = 0;
      for (int64_t i = 0; i < columns; ++i) {
        const double both = double{x[row * columns + i]} + residual[row * columns + i];
        squares += both * both;
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(columns) + 1e-6);
      for (int64_t i = 0; i < columns; ++i) {
        const double both = double{x[row * columns + i]} + residual[row * columns + i];
        expected[row * columns + i] = static_cast<float>(both * scale * weight[i]);
      }
    }
    ExpectClose(y, expected);
    Numbers dsum(x.size()), again(x.size());
    std::vector<double> dweight(weight.size());
    const Numbers dy = Draw(kRows * columns, 4), passed = Draw(kRows * columns, 5);
    rows_.NormBackward(dy.data(), sum.data(), rstd.data(), weight.data(), passed.data(), kRows, columns, dsum.data(),
                       dweight.data(), again.data());
    ExpectClose(again, y);
  }
}

TEST_P(HostRowsTest, RotationThereAndBackLeavesARowAsItWas) {
  for (const int64_t half : {1, 7, 8, 16, 17}) {
    const int64_t heads = 2, stride = heads * 2 * half + 3;  // numbers after the heads are not touched
    const Numbers x = Draw((kRows - 1) * stride + heads * 2 * half, 1);
    const std::vector<int64_t> positions = {0, 3, 1, 3, 2};
    Numbers cos(4 * half), sin(4 * half);
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = std::cos(static_cast<float>(i));
      sin[i] = std::sin(static_cast<float>(i));
    }
    Numbers turned = x;
    rows_.Rotate(turned.data(), kRows, stride, heads, half, cos.data(), sin.data(), half, positions.data(), false);
    EXPECT_NE(turned, x);
    rows_.Rotate(turned.data(), kRows, stride, heads, half, cos.data(), sin.data(), half, positions.data(), true);
    ExpectClose(turned, x);
  }
}

TEST_P(HostRowsTest, SwiGluIsTheDefinitionsAndItsBackwardGivesTheRowsAgain) {
  for (const int64_t width : kWidths) {
    const Numbers gate_up = Draw(kRows * 2 * width, 1), dy = Draw(kRows * width, 2);
    Numbers y(dy.size()), again(dy.size()), expected(dy.size()), dgate_up(gate_up.size());
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        const double gate = gate_up[row * 2 * width + i], up = gate_up[row * 2 * width + width + i];
        expected[row * width + i] = static_cast<float>(gate / (1 + std::exp(-gate)) * up);
      }
    }
    rows_.SwiGlu(gate_up.data(), kRows, width, y.data());
    ExpectClose(y, expected);
    rows_.SwiGluBackward(dy.data(), gate_up.data(), kRows, width, dgate_up.data(), again.data());
    ExpectClose(again, expected);
    Numbers same(gate_up.size());
    rows_.SwiGluBackward(dy.data(), gate_up.data(), kRows, width, same.data(), nullptr);
    EXPECT_EQ(same, dgate_up);
  }
}

// The last row of a packed sequence equals one row of queries on the same keys and values in blocks.
TEST_P(HostRowsTest, AttentionToBlocksIsThatOfTheLastRow) {
  for (const int64_t dim : {4, 15, 16, 17}) {
    for (const int64_t length : {1, 5, 17}) {
      const HostSequence sequence = {.length = length, .heads = 4, .kv_heads = 2, .head_dim = dim};
      const int64_t stride = sequence.kv_heads * dim, block_tokens = 4,
                    blocks = (length + block_tokens - 1) / block_tokens;
      const Numbers qkv = Draw(length * sequence.row_size(), 1);
      Numbers y(length * sequence.query_size()), log_sum_exp(length * sequence.heads), scratch(length);
      rows_.Attend(sequence, qkv.data(), y.data(), log_sum_exp.data(), scratch.data());

      std::vector<Numbers> memory(blocks, Numbers(2 * block_tokens * stride));
      for (int64_t t = 0; t < length; ++t) {
        const float* const keys = qkv.data() + t * sequence.row_size() + sequence.query_size();
        for (int64_t i = 0; i < stride; ++i) {
          memory[t / block_tokens][t % block_tokens * stride + i] = keys[i];
          memory[t / block_tokens][(block_tokens + t % block_tokens) * stride + i] = keys[stride + i];
        }
      }
      std::vector<const float*> places;
      for (const Numbers& block : memory) places.push_back(block.data());
      const float* const query = qkv.data() + (length - 1) * sequence.row_size();
      Numbers row(sequence.query_size()), room(length);
      rows_.AttendBlocks(sequence, query, places.data(), block_tokens, block_tokens * stride, row.data(), room.data());
      ExpectClose(row, Numbers(y.end() - sequence.query_size(), y.end()));

      const Numbers dy = Draw(length * sequence.query_size(), 2);
      Numbers dqkv(qkv.size()), twice(2 * length);
      rows_.AttendBackward(sequence, dy.data(), qkv.data(), y.data(), log_sum_exp.data(), dqkv.data(), twice.data());
      for (const float gradient : dqkv) EXPECT_TRUE(std::isfinite(gradient));
    }
  }
}

// The gradients of a log-probability over a row of logits sum to zero, as the log-probability does not change when all
// logits rise together.
TEST_P(HostRowsTest, HeadGivesLogProbsOfTheDefinitionAndGradientsThatAddUpToNothing) {
  for (const int64_t vocabulary : {1, 2, 16, 31, 257}) {
    Numbers logits = Draw(kRows * vocabulary, 1);
    const Numbers dlogprob = Draw(kRows, 2), dentropy = Draw(kRows, 3);
    std::vector<int64_t> targets;
    for (int64_t row = 0; row < kRows; ++row) targets.push_back(row * 7 % vocabulary);
    Numbers logprob(kRows), entropy(kRows), log_sum_exp(kRows), top(kRows), expected(kRows);
    rows_.Head(logits.data(), targets.data(), 0.7f, kRows, vocabulary, logprob.data(), entropy.data(),
               log_sum_exp.data(), top.data());
    for (int64_t row = 0; row < kRows; ++row) {
      double total = 0;
      for (int64_t i = 0; i < vocabulary; ++i) total += std::exp(double{logits[row * vocabulary + i]} / 0.7);
      expected[row] = static_cast<float>(double{logits[row * vocabulary + targets[row]]} / 0.7 - std::log(total));
      const auto row_begin = logits.begin() + row * vocabulary;
      const double largest = *std::max_element(row_begin, row_begin + vocabulary);
      EXPECT_NEAR(double{top[row]}, std::exp(largest / 0.7) / total, 1e-6);
    }
    ExpectClose(logprob, expected);
    rows_.HeadBackward(logits.data(), targets.data(), entropy.data(), log_sum_exp.data(), dlogprob.data(),
                       dentropy.data(), 0.7f, kRows, vocabulary);
    for (int64_t row = 0; row < kRows; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < vocabulary; ++i) sum += logits[row * vocabulary + i];
      EXPECT_NEAR(sum, 0, 1e-4);
    }
  }
}

}  // namespace
}  // namespace syncopate::model
