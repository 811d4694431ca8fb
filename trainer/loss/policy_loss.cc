#include "trainer/loss/policy_loss.h"

namespace syncopate::trainer {
namespace {

constexpr double kLogRatioBound = 20.0;  // exp() of it is far outside every band and still finite

double Sum(const at::Tensor& tensor) { return at::sum(tensor, at::kDouble).item<double>(); }

// max(-A u, -A clip(u)) and how often the clip decided.
at::Tensor ClippedSurrogate(const at::Tensor& log_ratio, const at::Tensor& advantage, const PolicyLossOptions& options,
                            double* clipped) {
  at::Tensor ratio = at::exp(log_ratio);
  at::Tensor plain = -advantage * ratio;
  at::Tensor bounded = -advantage * at::clamp(ratio, 1.0 - options.clip_low, 1.0 + options.clip_high);
  *clipped = Sum(bounded.detach().gt(plain.detach()));
  return at::maximum(plain, bounded);
}

// The detached weight of each token.
at::Tensor CorrectionWeight(const at::Tensor& rho, const PolicyLossOptions& options, double* rejected) {
  if (options.correction == Correction::kTis) {
    *rejected = Sum(rho.gt(options.tis_cap));
    return at::clamp_max(rho, options.tis_cap);
  }
  at::Tensor inside = at::logical_and(rho.ge(options.mis_low), rho.le(options.mis_high));
  *rejected = static_cast<double>(rho.numel()) - Sum(inside);
  return rho * inside;
}

}  // namespace

PolicyLossSums PolicyLoss(const PolicyLossInput& input, const PolicyLossOptions& options) {
  PolicyLossSums sums;
  at::Tensor log_rho = at::clamp(input.proximal - input.behaviour, -kLogRatioBound, kLogRatioBound).detach();
  at::Tensor rho = at::exp(log_rho);
  sums.mismatch_k3 = Sum(rho - 1.0 - log_rho);
  if (options.correction == Correction::kNone) {
    at::Tensor log_ratio = at::clamp(input.current - input.behaviour, -kLogRatioBound, kLogRatioBound);
    sums.loss = ClippedSurrogate(log_ratio, input.advantage, options, &sums.clipped).sum();
    sums.ratio_max = at::exp(log_ratio).max().item<double>();
    sums.weight = sums.weight_square = static_cast<double>(rho.numel());
    return sums;
  }
  at::Tensor log_ratio = at::clamp(input.current - input.proximal, -kLogRatioBound, kLogRatioBound);
  at::Tensor surrogate = ClippedSurrogate(log_ratio, input.advantage, options, &sums.clipped);
  at::Tensor weight = CorrectionWeight(rho, options, &sums.rejected);
  sums.loss = (weight * surrogate).sum();
  sums.ratio_max = at::exp(log_ratio.detach()).max().item<double>();
  sums.weight = Sum(weight);
  sums.weight_square = Sum(weight * weight);
  return sums;
}

}  // namespace syncopate::trainer
