#include "trainer/actor/actor.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstring>

namespace syncopate::trainer {
namespace {

at::Tensor FlatArena(const Manifest& manifest) {
  return at::zeros({manifest.arena_bytes() / static_cast<int64_t>(sizeof(float))}, at::kFloat);
}

}  // namespace

Actor::Actor(const model::ModelConfig& config, const Manifest& manifest, const AdamWOptions& options, uint64_t seed)
    : manifest_(manifest),
      options_(options),
      transformer_(config, at::kCPU),
      parameters_(FlatArena(manifest)),
      gradients_(FlatArena(manifest)),
      first_moment_(FlatArena(manifest)),
      second_moment_(FlatArena(manifest)),
      weights_(model::ViewWeights(config, manifest, parameters_)) {
  model::InitialiseWeights(config, manifest, seed, parameters_.data_ptr<float>());
  std::vector<at::Tensor> leaves = weights_.Distinct();
  std::vector<at::Tensor> gradients = model::ViewWeights(config, manifest, gradients_).Distinct();
  for (size_t i = 0; i < leaves.size(); ++i) {
    leaves[i].set_requires_grad(true);
    leaves[i].mutable_grad() = gradients[i];  // autograd adds in place to a gradient that is there
  }
}

absl::StatusOr<double> Actor::OptimizerStep() {
  at::NoGradGuard no_grad;
  const double norm = at::norm(gradients_).item<double>();
  if (!std::isfinite(norm)) {
    return Error(absl::StatusCode::kFailedPrecondition, "NON_FINITE_GRADIENT",
                 "the gradient is not finite; lower train.learning_rate or look at the batch's rewards");
  }
  if (options_.max_grad_norm > 0 && norm > options_.max_grad_norm) gradients_.mul_(options_.max_grad_norm / norm);
  ++updates_;
  const double correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(updates_));
  const double correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(updates_));
  if (options_.weight_decay != 0) parameters_.mul_(1.0 - options_.learning_rate * options_.weight_decay);
  first_moment_.lerp_(gradients_, 1.0 - options_.beta1);
  second_moment_.mul_(options_.beta2).addcmul_(gradients_, gradients_, 1.0 - options_.beta2);
  at::Tensor denominator = (second_moment_.sqrt() / std::sqrt(correction2)).add_(options_.eps);
  parameters_.addcdiv_(first_moment_, denominator, -options_.learning_rate / correction1);
  return norm;
}

void Actor::Restore(const State& state) {
  const size_t bytes = static_cast<size_t>(manifest_.arena_bytes());
  std::memcpy(parameters_.data_ptr(), state.parameters, bytes);
  std::memcpy(first_moment_.data_ptr(), state.first_moment, bytes);
  std::memcpy(second_moment_.data_ptr(), state.second_moment, bytes);
  updates_ = state.updates;
}

}  // namespace syncopate::trainer
