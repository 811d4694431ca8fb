#include "trainer/actor/actor.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace syncopate::trainer {
namespace {

at::Tensor FlatArena(const Manifest& manifest, at::Device device) {
  return at::zeros({manifest.arena_bytes() / static_cast<int64_t>(sizeof(float))},
                   at::TensorOptions(at::kFloat).device(device));
}

// A view of an arena in host memory.
at::Tensor HostArena(const Manifest& manifest, const void* bytes) {
  return at::from_blob(const_cast<void*>(bytes), {manifest.arena_bytes() / static_cast<int64_t>(sizeof(float))},
                       at::kFloat);
}

// Tensor by tensor, so that a GPU's weights need little host memory on their way.
void CopyWeights(const model::WeightFiles& files, const Manifest& manifest, at::Tensor& arena) {
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const int64_t begin = manifest.ranges()[i].begin / static_cast<int64_t>(sizeof(float));
    at::Tensor there = arena.narrow(0, begin, manifest.tensors()[i].NumElements());
    at::Tensor here = arena.is_cpu() ? there : at::empty(there.sizes(), at::kFloat);
    files.Read(i, absl::MakeSpan(here.data_ptr<float>(), static_cast<size_t>(here.numel())));
    if (!arena.is_cpu()) there.copy_(here);
  }
}

}  // namespace

Actor::Actor(const model::ModelConfig& config, const Manifest& manifest, const AdamWOptions& options, uint64_t seed,
             at::Device device, const model::WeightFiles* files)
    : manifest_(manifest),
      options_(options),
      transformer_(config, device),
      parameters_(FlatArena(manifest, device)),
      gradients_(FlatArena(manifest, device)),
      first_moment_(FlatArena(manifest, device)),
      second_moment_(FlatArena(manifest, device)),
      weights_(model::ViewWeights(config, manifest, parameters_)) {
  if (files != nullptr) {
    CopyWeights(*files, manifest, parameters_);
  } else {
    at::Tensor initial = device.is_cpu() ? parameters_ : FlatArena(manifest, at::kCPU);
    model::InitialiseWeights(config, manifest, seed, initial.data_ptr<float>());
    if (!initial.is_same(parameters_)) parameters_.copy_(initial);
  }
  std::vector<at::Tensor> leaves = weights_.Distinct();
  std::vector<at::Tensor> gradients = model::ViewWeights(config, manifest, gradients_).Distinct();
  for (size_t i = 0; i < leaves.size(); ++i) {
    leaves[i].set_requires_grad(true);
    leaves[i].mutable_grad() = gradients[i];  // autograd adds in place to a gradient that is there
  }
}

double Actor::NormLimit() const {
  double limit = options_.max_grad_norm > 0 ? options_.max_grad_norm : std::numeric_limits<double>::infinity();
  if (options_.max_grad_growth > 0 && updates_ > 0) {
    const double correction = 1.0 - std::pow(options_.beta2, static_cast<double>(updates_));
    const double remembered = std::sqrt(at::sum(second_moment_, at::kDouble).item<double>() / correction);
    // Gradients that were all 0 say nothing about the next one.
    if (remembered > 0) limit = std::min(limit, options_.max_grad_growth * remembered);
  }
  return limit;
}

absl::StatusOr<double> Actor::OptimizerStep() {
  at::NoGradGuard no_grad;
  const double norm = at::norm(gradients_).item<double>();
  if (!std::isfinite(norm)) {
    return Error(absl::StatusCode::kFailedPrecondition, "NON_FINITE_GRADIENT",
                 "the gradient is not finite; lower train.learning_rate or look at the batch's rewards");
  }
  if (const double limit = NormLimit(); norm > limit) gradients_.mul_(limit / norm);
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

void Actor::Restore(const void* parameters, const void* first_moment, const void* second_moment, int64_t updates) {
  at::NoGradGuard no_grad;
  parameters_.copy_(HostArena(manifest_, parameters));
  first_moment_.copy_(HostArena(manifest_, first_moment));
  second_moment_.copy_(HostArena(manifest_, second_moment));
  updates_ = updates;
}

}  // namespace syncopate::trainer
