#include "rollouter/engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

namespace syncopate::rollouter {
namespace {

const std::vector<float> kLogits = {1.0f, 2.0f, 3.0f, 0.0f, 2.5f};

std::map<int32_t, double> Frequencies(const SamplingParams& params, int draws = 40000,
                                      const TokenCounts* history = nullptr) {
  std::map<int32_t, double> counts;
  for (int i = 0; i < draws; ++i) counts[SampleToken(kLogits.data(), 5, params, 17, i, history).token] += 1.0 / draws;
  return counts;
}

// Expects that the frequencies of tokens are those of these logits.
void ExpectDistribution(std::map<int32_t, double> frequencies, const std::vector<double>& logits) {
  double total = 0;
  for (double logit : logits) total += std::exp(logit);
  for (size_t token = 0; token < logits.size(); ++token) {
    EXPECT_NEAR(frequencies[static_cast<int32_t>(token)], std::exp(logits[token]) / total, 0.01) << token;
  }
}

double Probability(int32_t token, double temperature) {
  double total = 0;
  for (float logit : kLogits) total += std::exp(logit / temperature);
  return std::exp(kLogits[token] / temperature) / total;
}

TEST(SamplerTest, DrawsEachTokenAsOftenAsItsProbability) {
  SamplingParams params;
  params.temperature = 0.7f;
  std::map<int32_t, double> frequencies = Frequencies(params);
  for (int32_t token = 0; token < 5; ++token) EXPECT_NEAR(frequencies[token], Probability(token, 0.7), 0.01) << token;
}

TEST(SamplerTest, ReportsTheLogProbabilityBeforeTopKAndTopP) {
  SamplingParams params;
  params.temperature = 0.7f;
  params.top_k = 2;
  params.top_p = 0.9f;
  for (int i = 0; i < 50; ++i) {
    SampledToken drawn = SampleToken(kLogits.data(), 5, params, 3, i);
    EXPECT_NEAR(drawn.logprob, std::log(Probability(drawn.token, 0.7)), 1e-6);
  }
}

TEST(SamplerTest, TopKKeepsTheMostLikelyAndRenormalises) {
  SamplingParams params;
  params.top_k = 2;
  std::map<int32_t, double> frequencies = Frequencies(params);
  EXPECT_EQ(frequencies.size(), 2u);
  EXPECT_NEAR(frequencies[2], 1.0 / (1.0 + std::exp(-0.5)), 0.01);
}

TEST(SamplerTest, TopPKeepsTheSmallestSetThatReachesIt) {
  SamplingParams params;
  params.top_p = static_cast<float>(Probability(2, 1.0) + 0.5 * Probability(4, 1.0));
  std::map<int32_t, double> frequencies = Frequencies(params);
  EXPECT_EQ(frequencies.size(), 2u);
  params.top_p = static_cast<float>(0.5 * Probability(2, 1.0));
  EXPECT_EQ(Frequencies(params, 1000).size(), 1u);
}

TEST(SamplerTest, MinPKeepsTheTokensThatAreLikelyEnoughBesideTheLikeliest) {
  SamplingParams params;
  params.min_p = 0.3f;  // exp(-0.5) and exp(-1) are above it, exp(-2) is not
  std::map<int32_t, double> frequencies = Frequencies(params);
  EXPECT_EQ(frequencies.size(), 3u);
  EXPECT_NEAR(frequencies[2], 1.0 / (1.0 + std::exp(-0.5) + std::exp(-1.0)), 0.01);
}

TEST(SamplerTest, OnlyAllowedTokensAreDrawnAndBiasIsAdded) {
  SamplingParams params;
  params.allowed_token_ids = {0, 3, 4};
  params.logit_bias = {{3, 2.0f}, {2, 9.0f}};
  ExpectDistribution(Frequencies(params), {1.0, -INFINITY, -INFINITY, 2.0, 2.5});
  params.temperature = 0;
  EXPECT_EQ(SampleToken(kLogits.data(), 5, params, 1, 1).token, 4);
}

TEST(SamplerTest, PenaltiesCountWhatStandsInTheSequence) {
  TokenCounts counts({2, 2, 3});
  for (int32_t token : {4, 4, 1}) counts.AddDrawn(token);
  SamplingParams params;
  params.presence_penalty = 0.5f;
  params.frequency_penalty = 0.25f;
  ExpectDistribution(Frequencies(params, 40000, &counts), {1.0, 2.0 - 0.75, 3.0, 0.0, 2.5 - 1.0});
  params = SamplingParams();
  params.repetition_penalty = 2.0f;
  params.logit_bias = {{3, -1.0f}};  // the penalty multiplies a negative logit
  ExpectDistribution(Frequencies(params, 40000, &counts), {1.0, 1.0, 1.5, -2.0, 1.25});
}

TEST(SamplerTest, LogProbabilitiesAreOfTheModelsOwnLogitsWhateverIsDrawnFrom) {
  TokenCounts counts({2});
  SamplingParams params;
  params.temperature = 0.7f;
  params.allowed_token_ids = {0, 1};
  params.logit_bias = {{0, 3.0f}};
  params.repetition_penalty = 1.5f;
  params.min_p = 0.1f;
  params.top_logprobs = 2;
  for (int i = 0; i < 50; ++i) {
    SampledToken drawn = SampleToken(kLogits.data(), 5, params, 3, i, &counts);
    EXPECT_NEAR(drawn.logprob, std::log(Probability(drawn.token, 0.7)), 1e-6);
    ASSERT_EQ(drawn.top.size(), 2u);
    EXPECT_EQ(drawn.top[0].token, 2);
    EXPECT_EQ(drawn.top[1].token, 4);
    EXPECT_NEAR(drawn.top[1].logprob, std::log(Probability(4, 0.7)), 1e-6);
  }
}

TEST(SamplerTest, GreedyTakesTheLowestIndexAmongEquals) {
  SamplingParams params;
  params.temperature = 0;
  const std::vector<float> tied = {1.0f, 4.0f, 4.0f};
  EXPECT_EQ(SampleToken(tied.data(), 3, params, 1, 1).token, 1);
  EXPECT_NEAR(SampleToken(tied.data(), 3, params, 1, 1).logprob, -std::log(2 + std::exp(-3.0)), 1e-6);
}

TEST(SamplerTest, ExtremeLogitsStayFinite) {
  SamplingParams params;
  const std::vector<float> extreme = {-1e30f, 1e30f, 0.0f};
  SampledToken drawn = SampleToken(extreme.data(), 3, params, 1, 1);
  EXPECT_EQ(drawn.token, 1);
  EXPECT_EQ(drawn.logprob, 0.0f);
}

TEST(SamplerTest, IsAPureFunctionOfSeedAndPosition) {
  SamplingParams params;
  bool seeds_differ = false;
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(SampleToken(kLogits.data(), 5, params, 9, i).token, SampleToken(kLogits.data(), 5, params, 9, i).token);
    seeds_differ |=
        SampleToken(kLogits.data(), 5, params, 9, i).token != SampleToken(kLogits.data(), 5, params, 10, i).token;
  }
  EXPECT_TRUE(seeds_differ);
}

}  // namespace
}  // namespace syncopate::rollouter
