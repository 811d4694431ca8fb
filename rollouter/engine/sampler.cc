#include "rollouter/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/philox.h"

namespace syncopate::rollouter {
namespace {

// The first index at which the running sum of `mass` exceeds uniform * total; the last index with mass if rounding
// carries the sum short of it.
int64_t InverseCdf(const std::vector<double>& mass, double total, float uniform) {
  const double target = static_cast<double>(uniform) * total;
  double running = 0;
  int64_t last = 0;
  for (size_t i = 0; i < mass.size(); ++i) {
    if (mass[i] <= 0) continue;
    running += mass[i];
    last = static_cast<int64_t>(i);
    if (running > target) return last;
  }
  return last;
}

// Sets to zero what top-k and top-p exclude. Returns the mass that is left.
double Filter(const SamplingParams& params, std::vector<double>& mass) {
  std::vector<int32_t> order(mass.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return mass[a] > mass[b]; });
  size_t keep = params.top_k > 0 ? std::min<size_t>(params.top_k, mass.size()) : mass.size();
  double total = 0;
  for (size_t i = 0; i < keep; ++i) total += mass[order[i]];
  if (params.top_p < 1.0f) {
    double running = 0;
    size_t reached = 0;
    while (reached < keep && running < params.top_p * total) running += mass[order[reached++]];
    keep = std::max<size_t>(reached, 1);
    total = running;
  }
  for (size_t i = keep; i < mass.size(); ++i) mass[order[i]] = 0;
  return total;
}

}  // namespace

SampledToken SampleToken(const float* logits, int64_t vocab_size, const SamplingParams& params, uint64_t seed,
                         int64_t position) {
  const bool greedy = params.temperature <= 0;
  const double inverse_temperature = greedy ? 1.0 : 1.0 / params.temperature;
  const int64_t best = std::max_element(logits, logits + vocab_size) - logits;
  std::vector<double> mass(vocab_size);
  double total = 0;
  for (int64_t i = 0; i < vocab_size; ++i) {
    mass[i] = std::exp((static_cast<double>(logits[i]) - logits[best]) * inverse_temperature);
    total += mass[i];
  }
  const double log_total = std::log(total);
  int64_t token = best;
  if (!greedy) {
    const bool filtered = params.top_k > 0 || params.top_p < 1.0f;
    const double left = filtered ? Filter(params, mass) : total;
    token = InverseCdf(mass, left, PhiloxUniform(seed, static_cast<uint64_t>(position)));
  }
  const double logprob = (static_cast<double>(logits[token]) - logits[best]) * inverse_temperature - log_total;
  return {static_cast<int32_t>(token), static_cast<float>(std::min(logprob, 0.0))};
}

}  // namespace syncopate::rollouter
