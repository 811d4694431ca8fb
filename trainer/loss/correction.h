#pragma once

#include <ATen/ATen.h>

#include "trainer/loss/loss_options.h"
#include "trainer/loss/ratios.h"
#include "trainer/loss/token_batch.h"

namespace syncopate::loss {

// The factor of each token's loss, without gradient.
struct TokenWeights {
  at::Tensor weight;   // [A]; undefined: 1 for all
  at::Tensor altered;  // [A] bool: masked, or clipped to a bound; undefined: none
};

// [A] bool: tokens that max_token_age lets have a loss; undefined: all.
at::Tensor TokensWithinAge(const TokenBatch& batch, const LossOptions& options);

// Correction, rejection, veto and OPSM of `options` together. Bands are inclusive. A token beyond max_token_age weighs
// 0 and does not count as altered for that.
TokenWeights CorrectTokens(const TokenRatios& ratios, const TokenBatch& batch, const LossOptions& options);

}  // namespace syncopate::loss
