#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <vector>

#include "trainer/loss/policy_loss.h"

// Fixture A: four answers of four tokens in two groups, with 13 trained tokens. An independent implementation of the
// same formulas (torch's autograd on padded rectangles) computed the expected figures of its tests in float64.
namespace syncopate::loss::testing {

MATCHER_P(NearWithin, tolerance, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) <= tolerance; }
inline auto Near(double tolerance, const std::vector<double>& expected) {
  return ::testing::Pointwise(NearWithin(tolerance), expected);
}

inline const std::vector<double> kBehaviour = {-1,   -.5, -2,   -.7, -.3, -1.2, -.9,  -1.5,
                                               -2.2, -.4, -1.1, -.6, -.8, -.8,  -1.6, -.2};
inline const std::vector<double> kOldMinusBehaviour = {.1,  -.2, .5,   0,   -.05, .3,  -.6, .2,
                                                       .02, .01, -.03, .04, 1.2,  -.1, 0,   -.9};
inline const std::vector<double> kNewMinusOld = {.3, -.3, .05, 0,  .15, -.1, .4, -.25,
                                                 0,  .25, -.5, .1, -.2, .35, .1, .05};
inline const std::vector<double> kBehaviourMinusReference = {.2, .1, -.3, 0,  0,   .4,  .1, -.2,
                                                             .3, .3, .3,  .3, -.1, -.1, .2, 0};
inline const std::vector<int> kMask = {1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1};
// (r - mean) / (std + 1e-6) of rewards 1, 0 and .25, .75.
inline const std::vector<double> kGrpo = {0.707105781186, -0.707105781186, -0.707104781189, 0.707104781189};

inline at::Tensor Tensor(const std::vector<double>& values, at::ScalarType dtype = at::kDouble) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(dtype);
}
inline at::Tensor Integers(const std::vector<int64_t>& values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong);
}
inline std::vector<double> Values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

// One answer of consecutive tokens, for a formula of tokens.
inline TokenBatch OneAnswer(const std::vector<double>& current, const std::vector<double>& proximal,
                            const std::vector<double>& behaviour, const std::vector<double>& advantage) {
  const int64_t count = static_cast<int64_t>(current.size());
  return {.current = Tensor(current),
          .behaviour = Tensor(behaviour),
          .advantage = Tensor(advantage),
          .proximal = Tensor(proximal),
          .answer = Integers(std::vector<int64_t>(current.size(), 0)),
          .answer_tokens = Integers({count})};
}

struct FixtureA {
  explicit FixtureA(at::ScalarType dtype = at::kDouble) {
    std::vector<double> b, o, n, ref, a;
    std::vector<int64_t> answer;
    for (size_t i = 0; i < kMask.size(); ++i) {
      if (kMask[i] == 0) continue;
      places.push_back(i);
      b.push_back(kBehaviour[i]);
      o.push_back(b.back() + kOldMinusBehaviour[i]);
      n.push_back(o.back() + kNewMinusOld[i]);
      ref.push_back(b.back() - kBehaviourMinusReference[i]);
      a.push_back(kGrpo[i / 4]);
      answer.push_back(static_cast<int64_t>(i / 4));
    }
    batch = {.current = Tensor(n, dtype).set_requires_grad(true),
             .behaviour = Tensor(b, dtype),
             .advantage = Tensor(a, dtype),
             .proximal = Tensor(o, dtype),
             .reference = Tensor(ref, dtype),
             .answer = Integers(answer),
             .answer_tokens = Integers({4, 3, 2, 4}),
             .group_tokens = Tensor({7, 7, 6, 6}, dtype)};
  }

  // Returns the loss; its gradient in the layout above goes to `gradient`, the figures to `figures`.
  double Loss(const LossOptions& options) {
    batch.current.mutable_grad() = at::Tensor();
    const at::Tensor share = LossShare(batch, extent, options);
    share.backward();
    gradient.assign(16, 0.0);
    const std::vector<double> of_tokens = Values(batch.current.grad());
    for (size_t i = 0; i < places.size(); ++i) gradient[places[i]] = of_tokens[i];
    const LossMeasurement measured = MeasureLoss(batch, extent, options);
    figures = FinishFigures(Values(measured.sums), Values(measured.maxima));
    return share.item<double>();
  }

  std::vector<size_t> places;
  TokenBatch batch;
  BatchExtent extent = {.tokens = 13, .answers = 4, .groups = 2};
  std::vector<double> gradient;
  LossFigures figures;
};

}  // namespace syncopate::loss::testing
