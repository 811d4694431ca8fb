#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/manifest.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "model/weight_files.h"
#include "trainer/step/options.h"

namespace syncopate::trainer {

// The policy that is trained: parameters, gradients and AdamW moments as four flat float32 tensors in wire order on one
// device, so that the optimizer is a handful of operators and staging a version is one copy. Not thread-safe: the step
// thread owns it. May throw c10::Error.
class Actor {
 public:
  // The weights of `files`, which were opened for `config`; without them random ones from `seed`, the same on every
  // device. `manifest` is the float32 manifest of `config`.
  Actor(const model::ModelConfig& config, const Manifest& manifest, const AdamWOptions& options, uint64_t seed,
        at::Device device = at::kCPU, const model::WeightFiles* files = nullptr);
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  const Manifest& manifest() const { return manifest_; }
  at::Device device() const { return parameters_.device(); }
  const model::Transformer& transformer() const { return transformer_; }
  // Leaves with gradients; backward() accumulates into the flat gradient.
  const model::TransformerWeights& weights() const { return weights_; }

  void ZeroGradients() { gradients_.zero_(); }
  // All gradients in wire order, for the ranks to sum; memory of device().
  absl::Span<float> gradients() {
    return absl::MakeSpan(gradients_.data_ptr<float>(), static_cast<size_t>(gradients_.numel()));
  }

  // Clips, then one AdamW update (Loshchilov & Hutter, arXiv 1711.05101; bias correction as in torch.optim.AdamW).
  //
  // Clipped is the norm: to max_grad_norm, and to max_grad_growth times the root of the second moment's sum (bias
  // corrected), which is the norm that gradients have had lately. Without the latter, one gradient that comes after
  // many small ones moves each weight by up to (1 - beta1) / sqrt(1 - beta2) / (1 - beta1 / sqrt(beta2)) learning rates
  // in one direction (5.8 with the defaults) before the moments have forgotten it, however small it is: AdamW divides
  // its size away. Late in an easy task that undid what was learned (docs/learning.md).
  //
  // Returns the gradient's norm before clipping. A non-finite norm leaves parameters and moments untouched and is
  // FAILED_PRECONDITION (reason NON_FINITE_GRADIENT).
  absl::StatusOr<double> OptimizerStep();
  int64_t updates() const { return updates_; }

  // The four tensors' owners are this object; a checkpoint holds three of them and the number of updates.
  const at::Tensor& parameters() const { return parameters_; }
  const at::Tensor& first_moment() const { return first_moment_; }
  const at::Tensor& second_moment() const { return second_moment_; }

  // Copies from host memory: three arenas of manifest().arena_bytes() bytes each.
  void Restore(const void* parameters, const void* first_moment, const void* second_moment, int64_t updates);

 private:
  // The largest norm that a gradient may have now.
  double NormLimit() const;

  const Manifest manifest_;
  const AdamWOptions options_;
  const model::Transformer transformer_;
  at::Tensor parameters_, gradients_, first_moment_, second_moment_;  // [arena elements]
  model::TransformerWeights weights_;
  int64_t updates_ = 0;
};

}  // namespace syncopate::trainer
