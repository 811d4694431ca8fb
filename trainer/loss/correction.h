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

// Correction, rejection, veto and OPSM of `options` together. Bands are inclusive.
TokenWeights CorrectTokens(const TokenRatios& ratios, const TokenBatch& batch, const LossOptions& options);

}  // namespace syncopate::loss
