#include "trainer/loss/ratios.h"

namespace syncopate::loss {
namespace {

at::Tensor Bounded(const at::Tensor& log_ratio) { return at::clamp(log_ratio, -kLogRatioBound, kLogRatioBound); }

}  // namespace

at::Tensor InterpolatedLogRho(const at::Tensor& log_v, const at::Tensor& age, bool linear) {
  const at::Tensor steps = age.to(log_v.scalar_type());
  const at::Tensor alpha = steps / (steps + 1.0);
  return linear ? at::log((1.0 - alpha) + alpha * at::exp(log_v)) : alpha * log_v;
}

TokenRatios CompareTokens(const TokenBatch& batch, const LossOptions& options) {
  TokenRatios ratios;
  const Proximal proximal = options.chosen_proximal();
  if (proximal == Proximal::kA3po || proximal == Proximal::kA3poLinear) {
    const at::Tensor log_v = Bounded(batch.current - batch.behaviour);
    const at::Tensor age =
        batch.age.defined() ? batch.age : at::zeros_like(log_v, log_v.options().requires_grad(false));
    ratios.log_rho = InterpolatedLogRho(log_v.detach(), age, proximal == Proximal::kA3poLinear);
    ratios.log_ratio = log_v - ratios.log_rho;
  } else {
    const at::Tensor old = batch.proximal.defined() ? batch.proximal : batch.current.detach();
    ratios.log_rho = Bounded(old - batch.behaviour).detach();
    ratios.log_ratio = Bounded(batch.current - (proximal == Proximal::kBypass ? batch.behaviour : old));
  }
  ratios.rho = at::exp(ratios.log_rho);
  return ratios;
}

}  // namespace syncopate::loss
