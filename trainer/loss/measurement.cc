#include "trainer/loss/measurement.h"

#include <ATen/core/grad_mode.h>

#include <array>
#include <limits>

#include "trainer/loss/answer_sums.h"

namespace syncopate::loss {
namespace {

at::Tensor Double(const at::Tensor& values) { return values.detach().to(at::kDouble); }

// The figures of tokens, [A] float64 each, at their places of LossSum.
class TokenFields {
 public:
  explicit TokenFields(const at::Tensor& like) : zeros_(at::zeros_like(like, like.options().dtype(at::kDouble))) {
    fields_.fill(zeros_);
  }
  void Set(LossSum place, const at::Tensor& values) {
    if (values.defined()) fields_[place] = Double(values);
  }
  const at::Tensor& at(LossSum place) const { return fields_[place]; }
  at::Tensor Sums() const { return at::stack(fields_).sum(1); }

 private:
  at::Tensor zeros_;
  std::array<at::Tensor, kSumAnswerRho> fields_;
};

at::Tensor Both(const at::Tensor& a, const at::Tensor& b) { return a.defined() ? at::logical_and(a, b) : at::Tensor(); }

// [kSumOfAges - kSumAnswerRho]: sums over answers.
at::Tensor AnswerFields(const TokenRatios& ratios, const at::Tensor& proximal, const TokenBatch& batch) {
  const at::Tensor sum = at::clamp(AnswerSums(ratios.log_rho, batch), -kLogRatioBound, kLogRatioBound);
  const at::Tensor product = at::exp(sum);
  const at::Tensor gap = AnswerMeans(ratios.log_rho, batch), log_likelihood = AnswerMeans(proximal, batch);
  return at::stack({product, product.square(), at::exp(-log_likelihood), at::exp(gap - log_likelihood), gap.abs()})
      .sum(1);
}

// [kLossAges * kLossAgeSums]: the tokens of each age are picked by a product with a matrix of zeros and ones, which
// adds in a fixed order on every device.
at::Tensor AgeFields(const TokenFields& fields, const at::Tensor& altered, const TokenBatch& batch,
                     const at::Tensor& trained) {
  const at::Tensor age = batch.age.defined() ? at::clamp_max(batch.age, kLossAges - 1) : at::zeros_like(batch.answer);
  at::Tensor bucket = at::arange(kLossAges, age.options()).unsqueeze(1).eq(age.unsqueeze(0)).to(at::kDouble);
  if (trained.defined()) bucket = bucket * trained.unsqueeze(0);
  const at::Tensor columns =
      at::stack({at::ones_like(altered), fields.at(kSumK1), fields.at(kSumK3), altered}, /*dim=*/1);
  return at::matmul(bucket, columns).flatten();
}

}  // namespace

LossMeasurement LossMeasurement::Nothing(at::Device device) {
  const at::TensorOptions options = at::TensorOptions(at::kDouble).device(device);
  return {at::zeros({kLossSums}, options), at::full({kLossMaxima}, -std::numeric_limits<double>::infinity(), options)};
}

void LossMeasurement::Add(const LossMeasurement& other) {
  sums = sums + other.sums;
  maxima = at::maximum(maxima, other.maxima);
}

LossMeasurement MeasureTokens(const TokenRatios& ratios, const TokenLosses& losses, const TokenWeights& weights,
                              const TokenBatch& batch, const at::Tensor& trained) {
  at::NoGradGuard no_grad;
  const at::Tensor rho = Double(ratios.rho), log_rho = Double(ratios.log_rho);
  const at::Tensor proximal = Double(batch.proximal.defined() ? batch.proximal : batch.current);
  const at::Tensor weight = weights.weight.defined() ? Double(weights.weight) : at::ones_like(rho);
  const at::Tensor high = losses.ratio.gt(1.0), heavy = rho.gt(1.0);
  TokenFields fields(ratios.rho);
  fields.Set(kSumTokens, at::ones_like(rho));
  fields.Set(kSumClippedLow, Both(losses.clipped, at::logical_not(high)));
  fields.Set(kSumClippedHigh, Both(losses.clipped, high));
  fields.Set(kSumDualClipped, losses.dual_clipped);
  fields.Set(kSumAlteredLow, Both(weights.altered, at::logical_not(heavy)));
  fields.Set(kSumAlteredHigh, Both(weights.altered, heavy));
  fields.Set(kSumWeight, weight);
  fields.Set(kSumWeightSquare, weight.square());
  fields.Set(kSumK1, -log_rho);
  fields.Set(kSumK3, rho - 1.0 - log_rho);
  fields.Set(kSumRho, rho);
  fields.Set(kSumRhoSquare, rho.square());
  fields.Set(kSumRatioKl, -ratios.log_ratio);
  fields.Set(kSumEntropy, batch.entropy);
  fields.Set(kSumTopProbability, batch.top_probability);
  if (batch.reference.defined()) {
    const at::Tensor x = at::clamp(Double(batch.current) - Double(batch.reference), -kLogRatioBound, kLogRatioBound);
    fields.Set(kSumReferenceKl, at::exp(-x) - 1.0 + x);
  }
  const at::Tensor p = at::exp(proximal), q = at::exp(Double(batch.behaviour));
  fields.Set(kSumProximalP, p);
  fields.Set(kSumProximalPSquare, p.square());
  fields.Set(kSumBehaviourP, q);
  fields.Set(kSumBehaviourPSquare, q.square());
  fields.Set(kSumPProduct, p * q);
  LossMeasurement measured;
  measured.sums = at::cat({fields.Sums(), AnswerFields(ratios, proximal, batch),
                           AgeFields(fields, fields.at(kSumAlteredLow) + fields.at(kSumAlteredHigh), batch, trained)});
  measured.sums[kSumAnswers].fill_(static_cast<double>(batch.answer_tokens.size(0)));
  measured.maxima = at::stack({Double(losses.ratio).max(), log_rho.abs().max(), weight.max(), (-weight).max()});
  return measured;
}

}  // namespace syncopate::loss
