#include "trainer/loss/divergence.h"

namespace syncopate::loss {
namespace {

at::Tensor Estimate(const at::Tensor& x, KlEstimator estimator) {
  switch (estimator) {
    case KlEstimator::kAuto:
    case KlEstimator::kK1:
      return x;
    case KlEstimator::kK2:
      return 0.5 * x.square();
    case KlEstimator::kK3:
      return at::exp(-x) - 1.0 + x;
    case KlEstimator::kK3Plus: {
      const at::Tensor k2 = 0.5 * x.square(), fixed = x.detach();
      return (at::exp(-fixed) - 1.0 + fixed) + (k2 - k2.detach());
    }
  }
  return x;
}

}  // namespace

at::Tensor ReferenceKl(const at::Tensor& current, const at::Tensor& reference, KlEstimator estimator,
                       const at::Tensor& log_ratio, double input_bound, double bound) {
  const at::Tensor x = current - reference;
  const at::Tensor bounded = input_bound > 0 ? at::clamp(x, -input_bound, input_bound) : x;
  at::Tensor kl = Estimate(bounded, estimator);
  if (log_ratio.defined()) {
    const at::Tensor weight = at::exp(log_ratio);
    // A token that is clamped has no gradient left of its own; through the weight alone it would be driven by noise.
    const at::Tensor is_clamped = bounded.detach().ne(x.detach());
    kl = kl * at::where(is_clamped, weight.detach(), weight);
  }
  return bound > 0 ? at::clamp(kl, -bound, bound) : kl;
}

}  // namespace syncopate::loss
