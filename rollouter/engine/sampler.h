#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/trajectory.h"

namespace syncopate::rollouter {

// How often tokens stand in a sequence: what penalties need to know. Not thread-safe.
class TokenCounts {
 public:
  TokenCounts() = default;
  explicit TokenCounts(const std::vector<int32_t>& prompt) {
    for (int32_t token : prompt) ++prompt_[token];
  }
  void AddDrawn(int32_t token) { ++drawn_[token]; }

  const std::unordered_map<int32_t, int32_t>& prompt() const { return prompt_; }
  const std::unordered_map<int32_t, int32_t>& drawn() const { return drawn_; }

 private:
  std::unordered_map<int32_t, int32_t> prompt_, drawn_;
};

struct SampledToken {
  int32_t token = 0;
  // Under softmax(logits / temperature) of the logits as they were given, over the whole vocabulary: before allowed
  // tokens, bias, penalties, min-p, top-k and top-p. With temperature 0 (greedy) the temperature is taken as 1 for it.
  float logprob = 0;
  std::vector<TokenLogProb> top;  // params.top_logprobs of the likeliest, in the same terms
};

// Whether `params` look at what stands in the sequence.
bool NeedsCounts(const SamplingParams& params);

// INVALID_ARGUMENT reason BAD_REQUEST, naming what cannot be.
absl::Status CheckSampling(const SamplingParams& params, int64_t vocab_size);

// The `count` likeliest tokens under softmax(logits / temperature), temperature 0 taken as 1; likeliest first, the lower
// index first among equals. Cost O(V log count).
std::vector<TokenLogProb> LikeliestTokens(const float* logits, int64_t vocab_size, float temperature, int32_t count);

// Draws one token from `logits` [vocab_size] by inverse CDF in index order, with the uniform number
// PhiloxUniform(seed, position): a pure function of its arguments. Greedy takes the lowest index among equals. The
// order is that of the fields of SamplingParams: what changes logits, then min-p and top-k, and top-p keeps the
// smallest set of the rest whose renormalised mass reaches it. `counts` may be null unless NeedsCounts(params). Cost
// O(V), with top-k, top-p or top_logprobs O(V log V).
SampledToken SampleToken(const float* logits, int64_t vocab_size, const SamplingParams& params, uint64_t seed,
                         int64_t position, const TokenCounts* counts = nullptr);

}  // namespace syncopate::rollouter
