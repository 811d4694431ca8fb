#pragma once

#include <cstdint>

#include "base/trajectory.h"

namespace syncopate::rollouter {

struct SampledToken {
  int32_t token = 0;
  // Log-probability under softmax(logits / temperature) over the whole vocabulary, before top-k and top-p. With
  // temperature 0 (greedy) the temperature is taken as 1 for it.
  float logprob = 0;
};

// Draws one token from `logits` [vocab_size] by inverse CDF in index order, with the uniform number
// PhiloxUniform(seed, position): a pure function of its arguments. Greedy takes the lowest index among equals. top-k
// cuts first, top-p then keeps the smallest set of the rest whose renormalised mass reaches it. Cost O(V), with
// top-k or top-p O(V log V).
SampledToken SampleToken(const float* logits, int64_t vocab_size, const SamplingParams& params, uint64_t seed,
                         int64_t position);

}  // namespace syncopate::rollouter
