#include "rollouter/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status.h"

namespace syncopate::rollouter {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

absl::Status BadRequest(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST", message);
}

// Unnormalised probabilities relative to the likeliest token.
struct Masses {
  std::vector<double> mass;
  double total = 0;
  int64_t best = 0;
};

Masses ComputeMasses(const float* logits, int64_t vocab_size, double inverse_temperature) {
  Masses masses;
  masses.best = std::max_element(logits, logits + vocab_size) - logits;
  masses.mass.resize(static_cast<size_t>(vocab_size));
  for (int64_t i = 0; i < vocab_size; ++i) {
    masses.mass[i] = std::exp((static_cast<double>(logits[i]) - logits[masses.best]) * inverse_temperature);
    masses.total += masses.mass[i];
  }
  return masses;
}

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

// Sets to zero what min-p excludes. The likeliest token has mass 1.
double CutUnlikely(float min_p, std::vector<double>& mass) {
  double left = 0;
  for (double& m : mass) {
    if (m < static_cast<double>(min_p)) m = 0;
    left += m;
  }
  return left;
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

void PenaliseRepetition(float penalty, int32_t token, std::vector<float>& logits) {
  float& logit = logits[token];
  logit = logit > 0 ? logit / penalty : logit * penalty;
}

// The logits that are drawn from, if they are not the given ones.
std::optional<std::vector<float>> ChangedLogits(const float* logits, int64_t vocab_size, const SamplingParams& params,
                                                const TokenCounts* counts) {
  if (params.allowed_token_ids.empty() && params.logit_bias.empty() && !NeedsCounts(params)) return std::nullopt;
  std::vector<float> changed(logits, logits + vocab_size);
  if (!params.allowed_token_ids.empty()) {
    std::fill(changed.begin(), changed.end(), kNever);
    for (int32_t token : params.allowed_token_ids) changed[token] = logits[token];
  }
  for (const TokenBias& bias : params.logit_bias) changed[bias.token] += bias.bias;
  if (!NeedsCounts(params)) return changed;
  SYNCOPATE_CHECK(counts != nullptr);
  if (params.repetition_penalty != 1) {
    for (const auto& [token, times] : counts->prompt()) PenaliseRepetition(params.repetition_penalty, token, changed);
    for (const auto& [token, times] : counts->drawn()) {
      if (counts->prompt().count(token) == 0) PenaliseRepetition(params.repetition_penalty, token, changed);
    }
  }
  for (const auto& [token, times] : counts->drawn()) {
    changed[token] -= params.presence_penalty + params.frequency_penalty * static_cast<float>(times);
  }
  return changed;
}

std::vector<TokenLogProb> Likeliest(const float* logits, int64_t vocab_size, int32_t count, double inverse_temperature,
                                    int64_t best, double log_total) {
  std::vector<int32_t> order(static_cast<size_t>(vocab_size));
  std::iota(order.begin(), order.end(), 0);
  const size_t wanted = std::min<size_t>(static_cast<size_t>(count), order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(wanted), order.end(),
                    [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  std::vector<TokenLogProb> top(wanted);
  for (size_t i = 0; i < wanted; ++i) {
    const double logprob = (static_cast<double>(logits[order[i]]) - logits[best]) * inverse_temperature - log_total;
    top[i] = {order[i], static_cast<float>(std::min(logprob, 0.0))};
  }
  return top;
}

bool AllInside(const std::vector<int32_t>& tokens, int64_t vocab_size) {
  return std::all_of(tokens.begin(), tokens.end(), [=](int32_t token) { return token >= 0 && token < vocab_size; });
}

}  // namespace

bool NeedsCounts(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0;
}

absl::Status CheckSampling(const SamplingParams& params, int64_t vocab_size) {
  if (params.max_new_tokens <= 0) return BadRequest("max_new_tokens must be positive");
  if (!(params.temperature >= 0) || !std::isfinite(params.temperature) || !(params.top_p > 0 && params.top_p <= 1) ||
      params.top_k < 0 || !(params.min_p >= 0 && params.min_p <= 1)) {
    return BadRequest(absl::StrCat("temperature ", params.temperature, " must be >= 0, top_p ", params.top_p,
                                   " in (0, 1], top_k ", params.top_k, " >= 0, min_p ", params.min_p, " in [0, 1]"));
  }
  if (!(params.repetition_penalty > 0) || !std::isfinite(params.repetition_penalty) ||
      !std::isfinite(params.presence_penalty) || !std::isfinite(params.frequency_penalty)) {
    return BadRequest(absl::StrCat("repetition_penalty ", params.repetition_penalty,
                                   " must be positive, presence_penalty ", params.presence_penalty,
                                   " and frequency_penalty ", params.frequency_penalty, " numbers"));
  }
  for (const TokenBias& bias : params.logit_bias) {
    if (bias.token < 0 || bias.token >= vocab_size || !std::isfinite(bias.bias)) {
      return BadRequest(absl::StrCat("logit_bias ", bias.bias, " of token ", bias.token,
                                     " must be a number, of a token of the vocabulary of ", vocab_size));
    }
  }
  if (!AllInside(params.allowed_token_ids, vocab_size)) {
    return BadRequest(absl::StrCat("allowed_token_ids must be of the vocabulary of ", vocab_size));
  }
  for (const std::vector<int32_t>& stop : params.stop_sequences) {
    if (stop.empty()) return BadRequest("a stop sequence is empty");
  }
  if (params.top_logprobs < 0 || params.top_logprobs > vocab_size) {
    return BadRequest(absl::StrCat("top_logprobs ", params.top_logprobs, " must be 0 to ", vocab_size));
  }
  return absl::OkStatus();
}

std::vector<TokenLogProb> LikeliestTokens(const float* logits, int64_t vocab_size, float temperature, int32_t count) {
  const double inverse_temperature = temperature > 0 ? 1.0 / temperature : 1.0;
  const Masses own = ComputeMasses(logits, vocab_size, inverse_temperature);
  return Likeliest(logits, vocab_size, count, inverse_temperature, own.best, std::log(own.total));
}

SampledToken SampleToken(const float* logits, int64_t vocab_size, const SamplingParams& params, uint64_t seed,
                         int64_t position, const TokenCounts* counts) {
  const bool greedy = params.temperature <= 0;
  const double inverse_temperature = greedy ? 1.0 : 1.0 / params.temperature;
  Masses own = ComputeMasses(logits, vocab_size, inverse_temperature);
  const double log_total = std::log(own.total);
  const int64_t own_best = own.best;
  const auto changed = ChangedLogits(logits, vocab_size, params, counts);
  Masses drawn_from =
      changed.has_value() ? ComputeMasses(changed->data(), vocab_size, inverse_temperature) : std::move(own);
  int64_t token = drawn_from.best;
  if (!greedy) {
    double left = drawn_from.total;
    if (params.min_p > 0) left = CutUnlikely(params.min_p, drawn_from.mass);
    if (params.top_k > 0 || params.top_p < 1.0f) left = Filter(params, drawn_from.mass);
    token = InverseCdf(drawn_from.mass, left, PhiloxUniform(seed, static_cast<uint64_t>(position)));
  }
  const double logprob = (static_cast<double>(logits[token]) - logits[own_best]) * inverse_temperature - log_total;
  SampledToken sampled{static_cast<int32_t>(token), static_cast<float>(std::min(logprob, 0.0)), {}};
  if (params.top_logprobs > 0) {
    sampled.top = Likeliest(logits, vocab_size, params.top_logprobs, inverse_temperature, own_best, log_total);
  }
  return sampled;
}

}  // namespace syncopate::rollouter
