#pragma once

#include <ATen/ATen.h>

#include "trainer/loss/loss_options.h"
#include "trainer/loss/token_batch.h"

namespace syncopate::loss {

// Logarithms of ratios are clamped to +- this before exp(): far outside every band and still finite (verl's bound). The
// gradient is 0 where it acts.
inline constexpr double kLogRatioBound = 20.0;

// The ratios between the policies at each token, [A] each.
struct TokenRatios {
  at::Tensor log_rho;    // o - b, no gradient: what corrections and masks look at
  at::Tensor rho;        // exp of it
  at::Tensor log_ratio;  // of the surrogate, with gradient: n - o, or n - b where the proximal policy is bypassed
};

// `o` as LossOptions::proximal says; a behaviour log-prob of -inf stays finite.
TokenRatios CompareTokens(const TokenBatch& batch, const LossOptions& options);

// log rho of A-3PO: log(p_prox) - log(p_b), for the log-ratio of current and behaviour policy (no gradient) and ages in
// steps. alpha = age / (age + 1): a token of age 0 was made by the proximal policy itself.
at::Tensor InterpolatedLogRho(const at::Tensor& log_v, const at::Tensor& age, bool linear);

}  // namespace syncopate::loss
