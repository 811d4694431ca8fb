#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/manifest.h"
#include "model/model_config.h"
#include "model/ops.h"
#include "model/transformer.h"
#include "model/weight_files.h"
#include "trainer/step/options.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// The policy that is trained: parameters, gradients and AdamW moments as four flat float32 tensors in wire order on one
// device, so that the optimizer is a handful of operators and staging a version is one copy. Forward and backward read
// the parameters themselves, or a bfloat16 copy that each update renews. Not thread-safe: the step thread owns it. May
// throw c10::Error.
class Actor {
 public:
  // The weights of `files`, which were opened for `config`; without them random ones from `seed`, the same on every
  // device. `manifest` is the float32 manifest of `config`. `compute`: kFloat or kBFloat16.
  Actor(const model::ModelConfig& config, const Manifest& manifest, const AdamWOptions& options, uint64_t seed,
        at::Device device = at::kCPU, const model::WeightFiles* files = nullptr, at::ScalarType compute = at::kFloat);
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  const Manifest& manifest() const { return manifest_; }
  at::Device device() const { return parameters_.device(); }
  const model::Transformer& transformer() const { return transformer_; }
  // What forward and backward multiply, in the dtype `compute`.
  const model::TransformerWeights& weights() const { return weights_; }
  // float32, shaped as the weights are: views of gradients().
  const model::TransformerWeights& gradient_views() const { return gradient_views_; }

  void ZeroGradients() { gradients_.zero_(); }
  // All gradients in wire order, for the ranks to sum; memory of device().
  absl::Span<float> gradients() {
    return absl::MakeSpan(gradients_.data_ptr<float>(), static_cast<size_t>(gradients_.numel()));
  }

  // Clips, then makes one AdamW update by the gradients, which it may scale in place; on a GPU nothing waits for it.
  // Nothing changes if the gradient's norm or `guard`, a scalar such as the loss, is not finite.
  //
  // Clipped is the norm: to max_grad_norm, and to max_grad_growth times the root of the second moment's sum (bias
  // corrected), which is the norm that gradients have had lately. Without the latter, one gradient that comes after
  // many small ones moves each weight by up to (1 - beta1) / sqrt(1 - beta2) / (1 - beta1 / sqrt(beta2)) learning rates
  // in one direction (5.8 with the defaults) before the moments have forgotten it, however small it is: AdamW divides
  // its size away. Late in an easy task that undid what was learned (docs/learning.md).
  //
  // Returns the gradient's norm before clipping, [] float32 on device(). Whoever has read it, and the guard, calls
  // CountUpdate() if both were finite.
  at::Tensor QueueUpdate(const at::Tensor& guard);
  void CountUpdate() { ++updates_; }
  int64_t updates() const { return updates_; }

  // Owned by this object; a checkpoint holds the three and the number of updates.
  const at::Tensor& parameters() const { return parameters_; }
  const at::Tensor& first_moment() const { return first_moment_; }
  const at::Tensor& second_moment() const { return second_moment_; }

  // Copies all of `source`, through a buffer of some MiB where the actor is not on the host.
  void Restore(const PolicySource& source);
  // As Policy::WriteTensor.
  absl::Status WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink) const;

 private:
  // What weight decay treats alike.
  struct Range {
    int64_t begin = 0;
    int64_t count = 0;
    bool decays = true;
  };
  static std::vector<Range> DecayRanges(const Manifest& manifest, bool decay_all);

  const at::Tensor& PartOf(PolicyPart part) const;
  // Tensor `index` of a part, [elements].
  at::Tensor FlatTensor(PolicyPart part, size_t index) const;

  // What gradients of this norm are multiplied by, [] float32; NaN if norm or guard is not finite.
  at::Tensor ClipFactor(const at::Tensor& norm, const at::Tensor& guard) const;
  void RenewCopy();

  const Manifest manifest_;
  const AdamWOptions options_;
  const model::Ops& ops_;
  const model::Transformer transformer_;
  const std::vector<Range> ranges_;
  at::Tensor parameters_, gradients_, first_moment_, second_moment_;  // [arena elements]
  at::Tensor copy_;                                                   // the same in bfloat16; undefined for kFloat
  const model::TransformerWeights weights_, gradient_views_;
  int64_t updates_ = 0;
};

}  // namespace syncopate::trainer
