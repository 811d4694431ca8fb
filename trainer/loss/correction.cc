#include "trainer/loss/correction.h"

#include "trainer/loss/answer_sums.h"

namespace syncopate::loss {
namespace {

at::Tensor Inside(const at::Tensor& value, double low, double high) {
  return at::logical_and(value.ge(low), value.le(high));
}

// Products over an answer are bounded as those of a token are, or one long answer overflows.
at::Tensor BoundedExp(const at::Tensor& log_ratio) {
  return at::exp(at::clamp(log_ratio, -kLogRatioBound, kLogRatioBound));
}

// min(rho, cap), at least floor.
TokenWeights Truncated(const at::Tensor& rho, double floor, double cap) {
  if (floor == 0) return {at::clamp_max(rho, cap), rho.gt(cap)};
  return {at::clamp(rho, floor, cap), at::logical_or(rho.gt(cap), rho.lt(floor))};
}

at::Tensor GeometricMask(const TokenRatios& ratios, const TokenBatch& batch, const LossOptions& options) {
  const at::Tensor mean = at::exp(AnswerMeans(ratios.log_rho, batch));
  return ToTokens(Inside(mean, options.geometric_low, options.geometric_high), batch);
}

// Keeps what `keep` [A] bool says of `weights`.
TokenWeights Masked(const TokenWeights& weights, const at::Tensor& keep, const at::Tensor& like) {
  const at::Tensor weight = weights.weight.defined() ? weights.weight * keep : keep.to(like.scalar_type());
  const at::Tensor masked = at::logical_not(keep);
  return {weight, weights.altered.defined() ? at::logical_or(weights.altered, masked) : masked};
}

TokenWeights ComputeCorrection(const TokenRatios& ratios, const TokenBatch& batch, const LossOptions& options) {
  const at::Tensor& rho = ratios.rho;
  switch (options.correction) {
    case Correction::kNone:
      return {};
    case Correction::kMis: {
      const at::Tensor inside = Inside(rho, options.mis_low, options.mis_high);
      return {rho * inside, at::logical_not(inside)};
    }
    case Correction::kTis:
      return Truncated(rho, options.tis_floor, options.tis_cap);
    case Correction::kSeqTis: {
      const at::Tensor product = BoundedExp(AnswerSums(ratios.log_rho, batch));
      const TokenWeights answers = Truncated(product, /*floor=*/0, options.seq_tis_cap);
      return {ToTokens(answers.weight, batch).to(rho.scalar_type()), ToTokens(answers.altered, batch)};
    }
    case Correction::kSeqMis: {
      const at::Tensor product = BoundedExp(AnswerSums(ratios.log_rho, batch));
      return Masked({}, ToTokens(Inside(product, options.mis_low, options.mis_high), batch), rho);
    }
    case Correction::kGeometric:
      return Masked({}, GeometricMask(ratios, batch, options), rho);
    case Correction::kSeqMaskTis:
      return Masked(Truncated(rho, options.tis_floor, options.tis_cap), GeometricMask(ratios, batch, options), rho);
  }
  return {};
}

// [A] bool: what the divergence estimate lets pass.
at::Tensor Accepted(const TokenRatios& ratios, const TokenBatch& batch, const LossOptions& options) {
  at::Tensor estimate = -ratios.log_rho;
  if (options.rejection == Rejection::kK2) estimate = 0.5 * ratios.log_rho.square();
  if (options.rejection == Rejection::kK3) estimate = ratios.rho - 1.0 - ratios.log_rho;
  switch (options.rejection_level) {
    case RejectionLevel::kToken:
      return Inside(estimate, options.rejection_low, options.rejection_high);
    case RejectionLevel::kSum:
      estimate = AnswerSums(estimate, batch);
      break;
    case RejectionLevel::kMean:
      estimate = AnswerMeans(estimate, batch);
      break;
    case RejectionLevel::kMax:
      estimate = AnswerMaxs(estimate, batch);
      break;
  }
  return ToTokens(Inside(estimate, options.rejection_low, options.rejection_high), batch);
}

// [A] bool: all but A < 0 in an answer with mean(-log_ratio) over opsm_delta.
at::Tensor NearPolicyTokens(const TokenRatios& ratios, const TokenBatch& batch, double opsm_delta) {
  const at::Tensor near = AnswerMeans(-ratios.log_ratio.detach(), batch).le(opsm_delta);
  return at::logical_or(batch.advantage.ge(0), ToTokens(near, batch));
}

}  // namespace

at::Tensor TokensWithinAge(const TokenBatch& batch, const LossOptions& options) {
  return options.max_token_age < 0 || !batch.age.defined() ? at::Tensor() : batch.age.le(options.max_token_age);
}

TokenWeights CorrectTokens(const TokenRatios& ratios, const TokenBatch& batch, const LossOptions& options) {
  TokenWeights weights = ComputeCorrection(ratios, batch, options);
  if (options.rejection != Rejection::kNone) weights = Masked(weights, Accepted(ratios, batch, options), ratios.rho);
  if (options.veto > 0) {
    const at::Tensor least = at::exp(AnswerMins(ratios.log_rho, batch));
    weights = Masked(weights, ToTokens(least.ge(options.veto), batch), ratios.rho);
  }
  if (options.opsm_delta > 0)
    weights = Masked(weights, NearPolicyTokens(ratios, batch, options.opsm_delta), ratios.rho);
  if (const at::Tensor within = TokensWithinAge(batch, options); within.defined()) {
    weights.weight = Masked(weights, within, ratios.rho).weight;
  }
  return weights;
}

}  // namespace syncopate::loss
