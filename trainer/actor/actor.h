#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/manifest.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "trainer/step/options.h"

namespace syncopate::trainer {

// The policy that is trained: parameters, gradients and AdamW moments as four flat float32 tensors in wire order, so
// that the optimizer is a handful of operators and staging a version is one copy. Not thread-safe: the step thread
// owns it.
class Actor {
 public:
  // Random initial weights from `seed`.
  Actor(const model::ModelConfig& config, const Manifest& manifest, const AdamWOptions& options, uint64_t seed);
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  const Manifest& manifest() const { return manifest_; }
  const model::Transformer& transformer() const { return transformer_; }
  // Leaves with gradients; backward() accumulates into the flat gradient.
  const model::TransformerWeights& weights() const { return weights_; }

  void ZeroGradients() { gradients_.zero_(); }
  // All gradients in wire order, for the ranks to sum.
  absl::Span<float> gradients() {
    return absl::MakeSpan(gradients_.data_ptr<float>(), static_cast<size_t>(gradients_.numel()));
  }

  // Clips, then one AdamW update (Loshchilov & Hutter, arXiv 1711.05101; bias correction as in torch.optim.AdamW).
  // Returns the gradient's norm before clipping. A non-finite norm leaves parameters and moments untouched and is
  // FAILED_PRECONDITION (reason NON_FINITE_GRADIENT).
  absl::StatusOr<double> OptimizerStep();
  int64_t updates() const { return updates_; }

  // The parameters as they would be staged: manifest().arena_bytes() bytes.
  const void* parameters() const { return parameters_.data_ptr(); }

  // What a checkpoint holds: three arenas of manifest().arena_bytes() bytes each and the number of updates.
  struct State {
    const void* parameters;
    const void* first_moment;
    const void* second_moment;
    int64_t updates;
  };
  State state() const {
    return {parameters_.data_ptr(), first_moment_.data_ptr(), second_moment_.data_ptr(), updates_};
  }
  // Copies from the pointers of `state`.
  void Restore(const State& state);

 private:
  const Manifest manifest_;
  const AdamWOptions options_;
  const model::Transformer transformer_;
  at::Tensor parameters_, gradients_, first_moment_, second_moment_;  // [arena elements]
  model::TransformerWeights weights_;
  int64_t updates_ = 0;
};

}  // namespace syncopate::trainer
