#pragma once

#include <ATen/ATen.h>

#include "trainer/loss/loss_options.h"
#include "trainer/loss/measurement.h"
#include "trainer/loss/token_batch.h"

// The parts of trainer/loss put together:
//
//   loss = Aggregate( weight x surrogate + kl_tau (n - b)^2 + kl_coefficient KL(n || ref) - entropy_coefficient H )
//
// weight by correction.h, surrogate by surrogate.h, KL by divergence.h, Aggregate by aggregation.h. With the defaults
// that is decoupled PPO (arXiv 2505.24298) with clip-higher and the IcePop band, as token mean.
namespace syncopate::loss {

// `options` must be valid in all of these. They never wait for the device, and may throw c10::Error.

// This micro-batch's share of the update's loss: a scalar with gradient.
at::Tensor LossShare(const TokenBatch& batch, const BatchExtent& extent, const LossOptions& options);

// The gradients of LossShare(), for a forward and backward that are not autograd's: batch.current and batch.entropy
// need none of their own, and the mode of the caller's thread does not matter.
struct LossGradients {
  at::Tensor dlogprob;  // [A], of the type of batch.current
  at::Tensor dentropy;  // [A]; undefined without an entropy bonus
};
LossGradients DifferentiateLoss(const TokenBatch& batch, const BatchExtent& extent, const LossOptions& options);

// The figures of a micro-batch, its share of the loss among them. No gradients.
LossMeasurement MeasureLoss(const TokenBatch& batch, const BatchExtent& extent, const LossOptions& options);

// Tokens [begin, begin + count) of `batch`: for LossShare() and DifferentiateLoss() of losses that do not need whole
// answers (LossOptions::needs_whole_answers()). Shares its memory.
TokenBatch SliceTokens(const TokenBatch& batch, int64_t begin, int64_t count);

}  // namespace syncopate::loss
