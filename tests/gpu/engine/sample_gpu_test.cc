#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rollouter/cuda/decode/sample_kernels.h"
#include "rollouter/engine/sampler.h"
#include "tests/gpu/engine/half_values.h"

namespace syncopate::rollouter {
namespace {

using cuda::DeviceBuffer;
using testing::Download;
using testing::Half;
using testing::Narrow;
using testing::Rounded;
using testing::Upload;

struct Results {
  std::vector<Drawn> draws;
  std::vector<int32_t> tokens;  // the tokens in the slots of the draws
};

// Draws from each row of logits [rows, vocab]. Rows are padded to the kernel's stride with values that the kernel must
// not use. Row r has slot rows - 1 - r, the r-th sampling options, and the numbers[r]-th token, or the first.
Results DrawOnGpu(const std::vector<float>& logits, int32_t vocab, const std::vector<SlotSampling>& sampling,
                  bool float32, std::vector<int32_t> numbers = {}) {
  const int32_t rows = static_cast<int32_t>(sampling.size()), stride = (vocab + 7) / 8 * 8;
  std::vector<float> padded(static_cast<size_t>(rows) * static_cast<size_t>(stride), 1e30f);
  for (int32_t row = 0; row < rows; ++row) {
    std::copy_n(logits.begin() + int64_t{row} * vocab, vocab, padded.begin() + int64_t{row} * stride);
  }
  std::vector<Half> halves;
  for (float value : padded) halves.push_back(Narrow(value));
  const DeviceBuffer on_gpu = float32 ? Upload(padded) : Upload(halves);
  std::vector<int32_t> slots;
  std::vector<SlotSampling> by_slot(sampling.rbegin(), sampling.rend());
  for (int32_t row = 0; row < rows; ++row) slots.push_back(rows - 1 - row);
  numbers.resize(sampling.size());
  const DeviceBuffer draw_slots = Upload(slots), draw_numbers = Upload(numbers), how = Upload(by_slot);
  const DeviceBuffer scratch = Upload(std::vector<char>(SampleScratchBytes(rows, vocab)));
  const DeviceBuffer results = Upload(std::vector<Drawn>(sampling.size(), Drawn{-7, 7, 7}));
  const DeviceBuffer tokens = Upload(std::vector<int32_t>(sampling.size(), -7));
  EXPECT_EQ(Sample({vocab, stride, float32}, on_gpu.data(),
                   {draw_slots.as<int32_t>(), draw_numbers.as<int32_t>(), nullptr, rows}, how.as<SlotSampling>(),
                   scratch.data(), results.as<Drawn>(), tokens.as<int32_t>(), nullptr),
            cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<int32_t> by_row = Download<int32_t>(tokens.data(), rows);
  std::reverse(by_row.begin(), by_row.end());
  return {Download<Drawn>(results.data(), rows), by_row};
}

std::vector<float> RandomLogits(int64_t count, float deviation, bool float32) {
  std::vector<float> logits(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float value = deviation * PhiloxNormal(31, static_cast<uint64_t>(i));
    logits[static_cast<size_t>(i)] = float32 ? value : Rounded(value);
  }
  return logits;
}

struct SampleCase {
  int32_t vocab = 0;
  float temperature = 1;
  float deviation = 2.5f;
  bool float32 = true;
};
class SampleOverCases : public ::testing::TestWithParam<SampleCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, SampleOverCases,
                         ::testing::Values(SampleCase{5}, SampleCase{8, 0.7f}, SampleCase{1003, 1.3f},
                                           SampleCase{8192, 1}, SampleCase{8193, 0}, SampleCase{32768, 0.5f, 8},
                                           SampleCase{151936, 1, 0.01f}, SampleCase{151936, 1, 2.5f, false},
                                           SampleCase{151936, 0, 2.5f, false}, SampleCase{152064, 0.9f, 6}));

TEST_P(SampleOverCases, DrawsWhatTheCpuDraws) {
  SYNCOPATE_NEED_GPUS(1);
  const SampleCase made = GetParam();
  const int rows = 32;
  const std::vector<float> logits = RandomLogits(int64_t{rows} * made.vocab, made.deviation, made.float32);
  std::vector<SlotSampling> sampling;
  std::vector<int32_t> numbers;
  for (int row = 0; row < rows; ++row) {
    SlotSampling how;
    how.seed = 0x123456789abcdefull * static_cast<uint64_t>(row + 1);
    numbers.push_back(row * row);
    how.inverse_temperature = made.temperature > 0 ? 1 / made.temperature : 0;
    sampling.push_back(how);
  }
  const Results drawn = DrawOnGpu(logits, made.vocab, sampling, made.float32, numbers);
  SamplingParams params;
  params.temperature = made.temperature;
  int equal = 0;
  for (int row = 0; row < rows; ++row) {
    const float* own = logits.data() + int64_t{row} * made.vocab;
    const Drawn& got = drawn.draws[static_cast<size_t>(row)];
    ASSERT_TRUE(got.token >= 0 && got.token < made.vocab) << "row " << row;
    EXPECT_EQ(drawn.tokens[static_cast<size_t>(row)], got.token);
    EXPECT_EQ(got.stopped, 0);
    const SampledToken expected =
        SampleToken(own, made.vocab, params, sampling[static_cast<size_t>(row)].seed, row * row);
    equal += got.token == expected.token;
    // Sums in another order may move a draw on the border of two tokens to the neighbour.
    EXPECT_LE(std::abs(got.token - expected.token), made.temperature > 0 ? 1 : 0) << "row " << row;
    if (got.token != expected.token) continue;
    EXPECT_NEAR(got.logprob, expected.logprob, 2e-5) << "row " << row;
  }
  EXPECT_GE(equal, rows - 1);
}

TEST(SampleTest, TakesTheFirstAmongEqualsWhenGreedy) {
  SYNCOPATE_NEED_GPUS(1);
  const int32_t vocab = 20000;
  std::vector<float> logits(2 * vocab, -1);
  for (int32_t i : {12345, 12346, 19999}) logits[static_cast<size_t>(i)] = 3;
  SlotSampling greedy;
  greedy.inverse_temperature = 0;
  const Results drawn = DrawOnGpu(logits, vocab, {greedy, greedy}, true);
  EXPECT_EQ(drawn.draws[0].token, 12345);
  EXPECT_NEAR(drawn.draws[0].logprob, -std::log(3 + (vocab - 3) * std::exp(-4.0)), 1e-5);
  EXPECT_EQ(drawn.draws[1].token, 0) << "all logits are equal";
}

TEST(SampleTest, DrawsByProbability) {
  SYNCOPATE_NEED_GPUS(1);
  const int32_t vocab = 9000, rows = 1024;
  std::vector<float> logits(static_cast<size_t>(vocab) * rows, -INFINITY);
  const std::vector<int32_t> hot = {3, 8200, 8201, vocab - 1};
  const std::vector<double> weights = {0.1, 0.2, 0.3, 0.4};
  std::vector<SlotSampling> sampling(rows);
  std::vector<int32_t> numbers(rows);
  for (int32_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < hot.size(); ++i) {
      logits[static_cast<size_t>(row) * vocab + static_cast<size_t>(hot[i])] = static_cast<float>(std::log(weights[i]));
    }
    sampling[static_cast<size_t>(row)].seed = 99;
    numbers[static_cast<size_t>(row)] = row;
  }
  const Results drawn = DrawOnGpu(logits, vocab, sampling, true, numbers);
  for (size_t i = 0; i < hot.size(); ++i) {
    const auto count = std::count(drawn.tokens.begin(), drawn.tokens.end(), hot[i]);
    EXPECT_NEAR(static_cast<double>(count) / rows, weights[i], 0.06) << "token " << hot[i];  // 0.06 is four deviations
  }
  int among = 0;
  for (int32_t token : drawn.tokens) among += std::count(hot.begin(), hot.end(), token) > 0;
  EXPECT_EQ(among, rows) << "a token of probability 0 was drawn";
}

TEST(SampleTest, SaysWhichTokensStopTheRow) {
  SYNCOPATE_NEED_GPUS(1);
  std::vector<float> logits(3 * 16, 0);
  for (int row = 0; row < 3; ++row) logits[static_cast<size_t>(row * 16 + 4 + row)] = 50;
  SlotSampling how;
  how.inverse_temperature = 0;
  how.stops = 2;
  how.stop_tokens[0] = 6;
  how.stop_tokens[1] = 4;
  how.stop_tokens[2] = 5;  // outside `stops`
  const Results drawn = DrawOnGpu(logits, 16, {how, how, how}, true);
  EXPECT_EQ(drawn.draws[0].stopped, 1);
  EXPECT_EQ(drawn.draws[1].stopped, 0);
  EXPECT_EQ(drawn.draws[2].stopped, 1);
}

TEST(SampleTest, SaysThatLogitsAreNotNumbers) {
  SYNCOPATE_NEED_GPUS(1);
  const int32_t vocab = 20000;
  for (bool greedy : {false, true}) {
    std::vector<float> logits(4 * vocab, 0.5f);
    logits[17000] = NAN;
    logits[vocab + 9] = INFINITY;
    std::fill(logits.begin() + 2 * vocab, logits.begin() + 3 * vocab, -INFINITY);
    SlotSampling how;
    how.inverse_temperature = greedy ? 0 : 1;
    const Results drawn = DrawOnGpu(logits, vocab, {how, how, how, how}, true);
    for (size_t row = 0; row < 3; ++row) {
      EXPECT_EQ(drawn.draws[row].token, 0) << "row " << row;
      EXPECT_TRUE(std::isnan(drawn.draws[row].logprob)) << "row " << row;
    }
    EXPECT_NEAR(drawn.draws[3].logprob, -std::log(static_cast<double>(vocab)), 1e-4)
        << "the row of a neighbour changes";
  }
}

TEST(SampleTest, DrawsSeveralTokensFromOneRow) {
  SYNCOPATE_NEED_GPUS(1);
  std::vector<float> logits(2 * 16, 0);
  logits[3] = logits[16 + 9] = 50;
  const DeviceBuffer on_gpu = Upload(logits), slots = Upload<int32_t>({2, 0, 1}), numbers = Upload<int32_t>({0, 0, 0});
  const DeviceBuffer rows = Upload<int32_t>({1, 0, 1}), how = Upload(std::vector<SlotSampling>(3));
  const DeviceBuffer scratch = Upload(std::vector<char>(static_cast<size_t>(SampleScratchBytes(3, 16))));
  const DeviceBuffer results = Upload(std::vector<Drawn>(3)), tokens = Upload<int32_t>({-7, -7, -7});
  ASSERT_EQ(Sample({16, 16, true}, on_gpu.data(), {slots.as<int32_t>(), numbers.as<int32_t>(), rows.as<int32_t>(), 3},
                   how.as<SlotSampling>(), scratch.data(), results.as<Drawn>(), tokens.as<int32_t>(), nullptr),
            cudaSuccess);
  EXPECT_EQ(Download<int32_t>(tokens.data(), 3), (std::vector<int32_t>{3, 9, 9}));
  EXPECT_EQ(Download<Drawn>(results.data(), 3)[1].token, 3);
}

TEST(SampleTest, RefusesAVocabularyThatIsTooLarge) {
  SYNCOPATE_NEED_GPUS(1);
  EXPECT_EQ(Sample({(1 << 19) + 8, (1 << 19) + 8, true}, nullptr, {nullptr, nullptr, nullptr, 1}, nullptr, nullptr,
                   nullptr, nullptr, nullptr),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace syncopate::rollouter
