#pragma once

#include <ATen/ATen.h>

#include "trainer/step/options.h"

namespace syncopate::trainer {

// Per-token inputs of one micro-batch, all [T], one entry for each token that is trained on; float32 or float64.
struct PolicyLossInput {
  at::Tensor current;    // n: log-prob under the weights being trained, with gradient
  at::Tensor proximal;   // o: log-prob under the weights at the start of the step, no gradient
  at::Tensor behaviour;  // b: log-prob the rollouter stored
  at::Tensor advantage;  // A
};

// Sums over the tokens of one micro-batch. The caller divides by the counts of the whole batch, over micro-batches and
// ranks, so that the result does not depend on how sequences are split.
struct PolicyLossSums {
  at::Tensor loss;           // scalar with gradient: sum of token losses (the denominator is the mask before rejection)
  double clipped = 0;        // tokens whose clip was active
  double rejected = 0;       // tokens with weight 0 (kMis) or capped (kTis)
  double mismatch_k3 = 0;    // sum of rho - 1 - log rho
  double ratio_max = 0;      // max of exp(n - o)
  double weight = 0;         // sum of w
  double weight_square = 0;  // sum of w^2, for the effective sample size
};

// Decoupled PPO (arXiv 2505.24298): sum over tokens of w * max(-A u, -A clip(u)), u = exp(n - o), w from the
// correction, detached. log rho is clamped to +-20 and a behaviour log-prob of -inf stays finite.
PolicyLossSums PolicyLoss(const PolicyLossInput& input, const PolicyLossOptions& options);

}  // namespace syncopate::trainer
