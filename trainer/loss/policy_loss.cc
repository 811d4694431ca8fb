#include "trainer/loss/policy_loss.h"

#include <ATen/core/grad_mode.h>

#include "trainer/loss/aggregation.h"
#include "trainer/loss/correction.h"
#include "trainer/loss/divergence.h"
#include "trainer/loss/ratios.h"
#include "trainer/loss/surrogate.h"

namespace syncopate::loss {
namespace {

// The terms that are added to the weighted surrogate; undefined if there are none.
at::Tensor Penalties(const TokenRatios& ratios, const TokenBatch& batch, const LossOptions& options) {
  at::Tensor total;
  auto add = [&total](const at::Tensor& term) { total = total.defined() ? total + term : term; };
  if (options.kl_tau > 0) {
    const at::Tensor log_v = at::clamp(batch.current - batch.behaviour, -kLogRatioBound, kLogRatioBound);
    add(options.kl_tau * log_v.square());
  }
  if (options.kl_coefficient > 0 && !options.kl_in_reward) {
    add(options.kl_coefficient * ReferenceKl(batch.current, batch.reference, options.chosen_kl_estimator(),
                                             options.kl_importance ? ratios.log_ratio : at::Tensor()));
  }
  if (options.entropy_coefficient > 0) add(-options.entropy_coefficient * batch.entropy);
  const at::Tensor within = TokensWithinAge(batch, options);
  return total.defined() && within.defined() ? total * within : total;
}

// The per-token values that the loss is computed from and that the figures measure.
struct Parts {
  TokenRatios ratios;
  TokenLosses losses;
  TokenWeights weights;

  Parts(const TokenBatch& batch, const LossOptions& options)
      : ratios(CompareTokens(batch, options)),
        losses(SurrogateLosses(ratios, batch, options)),
        weights(CorrectTokens(ratios, batch, options)) {}

  at::Tensor Share(const TokenBatch& batch, const BatchExtent& extent, const LossOptions& options) const {
    at::Tensor tokens = weights.weight.defined() ? weights.weight * losses.loss : losses.loss;
    const at::Tensor penalties = Penalties(ratios, batch, options);
    if (penalties.defined()) tokens = tokens + penalties;
    return Aggregate(tokens, batch, extent, options.chosen_aggregation(), options.max_response_tokens);
  }
};

at::Tensor Slice(const at::Tensor& tokens, int64_t begin, int64_t count) {
  return tokens.defined() ? tokens.narrow(0, begin, count) : tokens;
}

}  // namespace

at::Tensor LossShare(const TokenBatch& batch, const BatchExtent& extent, const LossOptions& options) {
  return Parts(batch, options).Share(batch, extent, options);
}

LossGradients DifferentiateLoss(const TokenBatch& batch, const BatchExtent& extent, const LossOptions& options) {
  at::AutoGradMode gradients(true);
  TokenBatch leaves = batch;
  leaves.current = batch.current.detach().requires_grad_(true);
  if (options.entropy_coefficient > 0) leaves.entropy = batch.entropy.detach().requires_grad_(true);
  LossShare(leaves, extent, options).backward();
  LossGradients made{leaves.current.grad(), {}};
  if (options.entropy_coefficient > 0) made.dentropy = leaves.entropy.grad();
  return made;
}

LossMeasurement MeasureLoss(const TokenBatch& batch, const BatchExtent& extent, const LossOptions& options) {
  at::NoGradGuard no_grad;
  const Parts parts(batch, options);
  LossMeasurement measured =
      MeasureTokens(parts.ratios, parts.losses, parts.weights, batch, TokensWithinAge(batch, options));
  measured.sums[kSumLoss].copy_(parts.Share(batch, extent, options));
  return measured;
}

TokenBatch SliceTokens(const TokenBatch& batch, int64_t begin, int64_t count) {
  TokenBatch slice = batch;
  for (at::Tensor TokenBatch::*field : {&TokenBatch::current, &TokenBatch::behaviour, &TokenBatch::advantage,
                                        &TokenBatch::proximal, &TokenBatch::reference, &TokenBatch::entropy,
                                        &TokenBatch::top_probability, &TokenBatch::age, &TokenBatch::answer}) {
    slice.*field = Slice(batch.*field, begin, count);
  }
  return slice;
}

}  // namespace syncopate::loss
