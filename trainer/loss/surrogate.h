#pragma once

#include <ATen/ATen.h>

#include "trainer/loss/loss_options.h"
#include "trainer/loss/ratios.h"
#include "trainer/loss/token_batch.h"

namespace syncopate::loss {

// The losses of tokens before any weight, [A] each; masks are bool and without gradient, undefined: nowhere.
struct TokenLosses {
  at::Tensor loss;
  at::Tensor ratio;         // what the surrogate multiplies with, no gradient; 1 of kReinforce
  at::Tensor clipped;       // a bound of the ratio decided: its gradient, or its weight, is no more than the bound's
  at::Tensor dual_clipped;  // of dual_clip
};

TokenLosses SurrogateLosses(const TokenRatios& ratios, const TokenBatch& batch, const LossOptions& options);

}  // namespace syncopate::loss
