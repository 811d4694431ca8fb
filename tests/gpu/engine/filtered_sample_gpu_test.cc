#include "rollouter/cuda/decode/filtered_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rollouter/engine/sampler.h"
#include "tests/gpu/engine/half_values.h"

namespace syncopate::rollouter {
namespace {

using cuda::DeviceBuffer;
using testing::Download;
using testing::Upload;

constexpr int32_t kRows = 24;

struct FilterCase {
  const char* name;
  SamplingParams sampling;
  int32_t vocab = 151936;
  float deviation = 2;
  int32_t ties = 0;  // logits are rounded to this number of steps a unit, so many are equal; 0: not rounded
};
void PrintTo(const FilterCase& one, std::ostream* out) { *out << one.name; }

class FilteredSampleOverOptions : public ::testing::TestWithParam<FilterCase> {};
INSTANTIATE_TEST_SUITE_P(
    Options, FilteredSampleOverOptions,
    ::testing::Values(
        FilterCase{"nothing", {}, 1003}, FilterCase{"top_k", {.top_k = 50}}, FilterCase{"top_k 1", {.top_k = 1}},
        FilterCase{"top_p", {.top_p = 0.9f}}, FilterCase{"a little top_p", {.top_p = 0.01f}},
        FilterCase{"top_k and top_p", {.top_k = 200, .top_p = 0.7f}},
        FilterCase{"ties at top_k", {.top_k = 40}, 5000, 1, 4},
        FilterCase{"ties at top_p", {.top_p = 0.3f}, 5000, 1, 4},
        FilterCase{"ties at both", {.top_k = 300, .top_p = 0.8f}, 5000, 1, 2}, FilterCase{"min_p", {.min_p = 0.05f}},
        FilterCase{"min_p, top_k and top_p", {.min_p = 0.02f, .top_k = 100, .top_p = 0.95f}},
        FilterCase{"hot", {.temperature = 3, .top_k = 100, .top_p = 0.5f}},
        FilterCase{"cold", {.temperature = 0.05f, .top_p = 0.99f}},
        FilterCase{"flat", {.top_p = 0.001f}, 151936, 1e-3f},
        FilterCase{"penalties",
                   {.repetition_penalty = 1.7f, .presence_penalty = 0.5f, .frequency_penalty = 0.3f, .top_p = 0.5f}},
        FilterCase{"greedy with penalties", {.repetition_penalty = 3, .temperature = 0}},
        FilterCase{"allowed", {.allowed_token_ids = {3, 999, 1500, 70000}, .logit_bias = {{5, 90.f}, {999, 1.f}}}},
        FilterCase{"bias", {.logit_bias = {{17, 6.f}, {18, -1e9f}}, .top_k = 10}}));

std::vector<float> Logits(const FilterCase& one, int32_t row) {
  std::vector<float> logits(static_cast<size_t>(one.vocab));
  for (size_t i = 0; i < logits.size(); ++i) {
    float& logit = logits[i] = one.deviation * PhiloxNormal(500 + static_cast<uint64_t>(row), i);
    if (one.ties > 0) logit = std::round(logit * static_cast<float>(one.ties)) / static_cast<float>(one.ties);
  }
  return logits;
}

// Each draw uses other logits. A few draws may go to a neighbouring token, since the masses are rounded differently.
TEST_P(FilteredSampleOverOptions, DrawsWhatTheHostsSamplerDraws) {
  SYNCOPATE_NEED_GPUS(1);
  const FilterCase& one = GetParam();
  const int32_t stride = (one.vocab + 7) / 8 * 8;
  const std::vector<int32_t> prompt = {3, 3, 17, 999, 1002}, answer = {5, 17, 17, 20, 20, 20};
  TokenCounts host_counts(prompt);
  for (int32_t token : answer) host_counts.AddDrawn(token);
  std::vector<int32_t> seen = prompt;
  seen.insert(seen.end(), answer.begin(), answer.end());
  std::vector<BiasEntry> entries;
  for (int32_t token : one.sampling.allowed_token_ids) entries.push_back({token, 0});
  for (const TokenBias& bias : one.sampling.logit_bias) {
    auto known =
        std::find_if(entries.begin(), entries.end(), [&](const BiasEntry& e) { return e.token == bias.token; });
    if (known != entries.end()) {
      known->bias += bias.bias;
    } else if (one.sampling.allowed_token_ids.empty()) {
      entries.push_back({bias.token, bias.bias});
    }
  }
  const DeviceBuffer bias = Upload(std::vector<float>(static_cast<size_t>(one.vocab), 7));
  const DeviceBuffer on_gpu_entries = Upload(entries), on_gpu_seen = Upload(seen);
  ASSERT_EQ(FillBias(on_gpu_entries.as<BiasEntry>(), static_cast<int32_t>(entries.size()),
                     one.sampling.allowed_token_ids.empty() ? 0 : -INFINITY, one.vocab, bias.as<float>(), nullptr),
            cudaSuccess);
  std::vector<std::vector<float>> logits;
  std::vector<float> padded(static_cast<size_t>(kRows) * static_cast<size_t>(stride), 1e30f);
  std::vector<FilteredDraw> list;
  std::vector<SlotSampling> how;
  std::vector<DeviceBuffer> counts;
  for (int32_t row = 0; row < kRows; ++row) {
    logits.push_back(Logits(one, row));
    std::copy(logits.back().begin(), logits.back().end(), padded.begin() + int64_t{row} * stride);
    counts.push_back(Upload(std::vector<uint16_t>(static_cast<size_t>(one.vocab), 9)));
    ASSERT_EQ(CountTokens(on_gpu_seen.as<int32_t>(), static_cast<int32_t>(prompt.size()),
                          static_cast<int32_t>(answer.size()), one.vocab, counts.back().as<uint16_t>(), nullptr),
              cudaSuccess);
    list.push_back({{.bias = entries.empty() ? nullptr : bias.as<float>(),
                     .counts = NeedsCounts(one.sampling) ? counts.back().as<uint16_t>() : nullptr,
                     .repetition_penalty = one.sampling.repetition_penalty,
                     .presence_penalty = one.sampling.presence_penalty,
                     .frequency_penalty = one.sampling.frequency_penalty,
                     .min_p = one.sampling.min_p,
                     .top_k = one.sampling.top_k,
                     .top_p = one.sampling.top_p},
                    row,
                    kRows - 1 - row,
                    row + 4,
                    row});
    how.insert(how.begin(), {.seed = 77 + static_cast<uint64_t>(row),
                             .inverse_temperature = one.sampling.temperature > 0 ? 1 / one.sampling.temperature : 0});
  }
  const DeviceBuffer on_gpu = Upload(padded), draws = Upload(list), sampling = Upload(how);
  const DeviceBuffer results = Upload(std::vector<Drawn>(kRows)), tokens = Upload(std::vector<int32_t>(kRows, -7));
  ASSERT_EQ(SampleFiltered({one.vocab, stride, true}, on_gpu.as<float>(), draws.as<FilteredDraw>(), kRows,
                           sampling.as<SlotSampling>(), results.as<Drawn>(), tokens.as<int32_t>(), nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<Drawn> drawn = Download<Drawn>(results.data(), kRows);
  const std::vector<int32_t> by_slot = Download<int32_t>(tokens.data(), kRows);
  int different = 0;
  for (int32_t row = 0; row < kRows; ++row) {
    const SampledToken expected =
        SampleToken(logits[row].data(), one.vocab, one.sampling, 77 + row, row + 4, &host_counts);
    EXPECT_EQ(by_slot[kRows - 1 - row], drawn[row].token);
    if (drawn[row].token != expected.token) {
      ++different;
      continue;
    }
    EXPECT_NEAR(drawn[row].logprob, expected.logprob, 2e-5) << "row " << row;
    if (NeedsCounts(one.sampling)) {
      const std::vector<uint16_t> after = Download<uint16_t>(counts[row].data(), one.vocab);
      const auto of_answer = std::count(answer.begin(), answer.end(), expected.token);
      EXPECT_EQ(after[expected.token] & kMostCounted, of_answer + 1);
      EXPECT_EQ(after[3] & kInPrompt, kInPrompt);
    }
  }
  EXPECT_LE(different, 1);
}

TEST(FilteredSampleTest, LogitsThatAreNoNumbersGiveNoLogProb) {
  SYNCOPATE_NEED_GPUS(1);
  std::vector<float> logits(64, 1);
  logits[40] = NAN;
  const DeviceBuffer on_gpu = Upload(logits), draws = Upload(std::vector<FilteredDraw>{{{.top_k = 3}, 0, 0, 0, 0}});
  const DeviceBuffer how = Upload(std::vector<SlotSampling>(1)), tokens = Upload(std::vector<int32_t>(1, -7));
  const DeviceBuffer results = Upload(std::vector<Drawn>(1));
  ASSERT_EQ(SampleFiltered({64, 64, true}, on_gpu.as<float>(), draws.as<FilteredDraw>(), 1, how.as<SlotSampling>(),
                           results.as<Drawn>(), tokens.as<int32_t>(), nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(std::isnan(Download<Drawn>(results.data(), 1)[0].logprob));
  EXPECT_EQ(Download<int32_t>(tokens.data(), 1)[0], 0);
}

}  // namespace
}  // namespace syncopate::rollouter
