#include "trainer/loss/surrogate.h"

#include "trainer/loss/answer_sums.h"

namespace syncopate::loss {
namespace {

// max(-A u, -A clip(u)), and above that the bound of dual_clip for A < 0.
TokenLosses Clipped(const at::Tensor& log_ratio, const at::Tensor& advantage, const LossOptions& options) {
  const at::Tensor ratio = at::exp(log_ratio);
  const at::Tensor plain = -advantage * ratio;
  const at::Tensor bounded = -advantage * at::clamp(ratio, 1.0 - options.clip_low, 1.0 + options.clip_high);
  TokenLosses losses{at::maximum(plain, bounded), ratio.detach(), bounded.detach().gt(plain.detach()), {}};
  if (options.dual_clip > 0) {
    const at::Tensor most = -advantage * options.dual_clip;
    losses.dual_clipped = at::logical_and(advantage.lt(0), losses.loss.detach().gt(most));
    losses.loss = at::where(advantage.lt(0), at::minimum(most, losses.loss), losses.loss);
  }
  return losses;
}

// sg(s) exp(n - sg(n)), s = exp(mean of log_ratio over the answer): in value s for each token, with the gradient of the
// token's own log-prob. Summed over an answer whose tokens share A that is the gradient of s itself.
at::Tensor AnswerLogRatio(const at::Tensor& log_ratio, const TokenBatch& batch) {
  const at::Tensor mean = ToTokens(AnswerMeans(log_ratio, batch), batch).to(log_ratio.scalar_type());
  return mean + (log_ratio - log_ratio.detach());
}

// -sg(clip(u)) A n.
TokenLosses Cispo(const at::Tensor& log_ratio, const TokenBatch& batch, const LossOptions& options) {
  const at::Tensor ratio = at::exp(log_ratio.detach());
  const at::Tensor bounded = at::clamp(ratio, 1.0 - options.clip_low, 1.0 + options.clip_high);
  return {-bounded * batch.advantage * batch.current, ratio, ratio.ne(bounded), {}};
}

TokenLosses Aipo(const at::Tensor& log_ratio, const TokenBatch& batch, const LossOptions& options) {
  const at::Tensor ratio = at::exp(log_ratio.detach());
  return {
      -at::clamp_max(ratio, options.tis_cap) * batch.advantage * batch.current, ratio, ratio.gt(options.tis_cap), {}};
}

TokenLosses Sapo(const at::Tensor& log_ratio, const at::Tensor& advantage, const LossOptions& options) {
  const at::Tensor ratio = at::exp(log_ratio);
  const at::Tensor tau = at::where(advantage.gt(0), at::full_like(advantage, options.sapo_tau_positive),
                                   at::full_like(advantage, options.sapo_tau_negative));
  return {-(4.0 / tau) * at::sigmoid(tau * (ratio - 1.0)) * advantage, ratio.detach(), {}, {}};
}

// Masked is what moves on in the direction of its advantage beyond a distance of probabilities (total variation).
TokenLosses Dppo(const at::Tensor& log_ratio, const TokenBatch& batch, const LossOptions& options) {
  const at::Tensor& advantage = batch.advantage;
  const at::Tensor moved = at::exp(batch.current.detach()) - at::exp(batch.behaviour);
  const at::Tensor masked = at::where(advantage.gt(0), moved.gt(options.clip_high), moved.lt(-options.clip_low));
  const at::Tensor ratio = at::exp(log_ratio);
  return {-advantage * ratio * at::logical_not(masked), ratio.detach(), masked, {}};
}

}  // namespace

TokenLosses SurrogateLosses(const TokenRatios& ratios, const TokenBatch& batch, const LossOptions& options) {
  switch (options.surrogate) {
    case Surrogate::kPpo:
      return Clipped(ratios.log_ratio, batch.advantage, options);
    case Surrogate::kGspo:
      return Clipped(AnswerLogRatio(ratios.log_ratio, batch), batch.advantage, options);
    case Surrogate::kCispo:
      return Cispo(ratios.log_ratio, batch, options);
    case Surrogate::kReinforce:
      return {-batch.advantage * batch.current, at::ones_like(batch.advantage), {}, {}};
    case Surrogate::kAipo:
      return Aipo(ratios.log_ratio, batch, options);
    case Surrogate::kSapo:
      return Sapo(ratios.log_ratio, batch.advantage, options);
    case Surrogate::kDppo:
      return Dppo(ratios.log_ratio, batch, options);
  }
  return {};
}

}  // namespace syncopate::loss
