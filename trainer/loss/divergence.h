#pragma once

#include <ATen/ATen.h>

#include "trainer/loss/loss_options.h"

namespace syncopate::loss {

// x = n - ref is clamped to this before exp(), and what comes out to kKlBound; the gradient is 0 where a clamp acts.
inline constexpr double kKlInputBound = 20.0;
inline constexpr double kKlBound = 10.0;

// KL(current || reference) of each token, [A], with gradient through `current`, by `estimator` (not kAuto).
// `log_ratio` [A]: if defined, its exp() is multiplied in with its gradient, which makes the estimate and its gradient
// unbiased for tokens of another policy: exp(n - o) (k3 + 1 - exp(-x)) = exp(n - o) x in expectation. Where x is
// clamped neither factor has a gradient. Bounds of 0 or less are off.
at::Tensor ReferenceKl(const at::Tensor& current, const at::Tensor& reference, KlEstimator estimator,
                       const at::Tensor& log_ratio = {}, double input_bound = kKlInputBound, double bound = kKlBound);

}  // namespace syncopate::loss
