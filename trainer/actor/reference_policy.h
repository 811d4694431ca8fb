#pragma once

#include <ATen/ATen.h>

#include "model/model_config.h"
#include "model/transformer.h"
#include "trainer/actor/actor.h"

namespace syncopate::trainer {

// A policy that stays as it was, for the divergence of the loss from it: its weights, of one type, where the actor's
// are. May throw c10::Error.
class ReferencePolicy {
 public:
  // As `actor` is now. `config` and `compute` are those that it was made with.
  ReferencePolicy(const Actor& actor, const model::ModelConfig& config, at::ScalarType compute)
      : arena_(actor.parameters().to(compute, /*non_blocking=*/false, /*copy=*/true)),
        weights_(model::ViewWeights(config, actor.manifest(), arena_)) {}

  const model::TransformerWeights& weights() const { return weights_; }

 private:
  const at::Tensor arena_;  // [arena elements]
  const model::TransformerWeights weights_;
};

}  // namespace syncopate::trainer
