#pragma once

#include <ATen/ATen.h>

#include "trainer/loss/correction.h"
#include "trainer/loss/loss_figures.h"
#include "trainer/loss/ratios.h"
#include "trainer/loss/surrogate.h"
#include "trainer/loss/token_batch.h"

namespace syncopate::loss {

// Sums of a micro-batch where they were computed: nothing waits for the device until the caller reads them, once a
// step.
struct LossMeasurement {
  at::Tensor sums;    // [kLossSums] float64
  at::Tensor maxima;  // [kLossMaxima] float64

  // The measurement of zero tokens.
  static LossMeasurement Nothing(at::Device device);
  void Add(const LossMeasurement& other);
};

// All figures but the loss, which the caller sets. No gradients are recorded. `trained`: [A] bool, the tokens that the
// figures by age are of; undefined: all.
LossMeasurement MeasureTokens(const TokenRatios& ratios, const TokenLosses& losses, const TokenWeights& weights,
                              const TokenBatch& batch, const at::Tensor& trained = {});

}  // namespace syncopate::loss
