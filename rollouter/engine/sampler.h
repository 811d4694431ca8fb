#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/trajectory.h"

namespace syncopate::rollouter {

// Counts how often each token occurs in a sequence, for penalties. Not thread-safe.
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
  // The log-probability under softmax(logits / temperature) of the logits as given, over the whole vocabulary: before
  // allowed tokens, bias, penalties, min-p, top-k and top-p. At temperature 0 (greedy) it uses temperature 1.
  float logprob = 0;
  std::vector<TokenLogProb> top;  // the params.top_logprobs likeliest tokens, with log-probabilities as above
};

// Whether `params` depend on the tokens of the sequence.
bool NeedsCounts(const SamplingParams& params);

// INVALID_ARGUMENT (reason BAD_REQUEST), naming the bad value.
absl::Status CheckSampling(const SamplingParams& params, int64_t vocab_size);

// Returns the `count` likeliest tokens under softmax(logits / temperature), where temperature 0 means 1; likeliest
// first, the lower index first among equals. Cost O(V log count).
std::vector<TokenLogProb> LikeliestTokens(const float* logits, int64_t vocab_size, float temperature, int32_t count);

// Draws one token from `logits` [vocab_size] by inverse CDF in index order, with the uniform number PhiloxUniform(seed,
// position): a pure function of its arguments. Greedy takes the lowest index among equals. The changes apply in the
// order of the fields of SamplingParams: first the changes of logits, then min-p and top-k, then top-p, which keeps the
// smallest set of the rest whose renormalised mass reaches it. `counts` may be null unless NeedsCounts(params). Cost
// O(V); with top-k, top-p or top_logprobs O(V log V).
SampledToken SampleToken(const float* logits, int64_t vocab_size, const SamplingParams& params, uint64_t seed,
                         int64_t position, const TokenCounts* counts = nullptr);

}  // namespace syncopate::rollouter
