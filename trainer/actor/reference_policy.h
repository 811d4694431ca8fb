#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "model/model_config.h"
#include "model/transformer.h"
#include "trainer/actor/actor.h"

namespace syncopate::trainer {

// A policy that stays as it was, for the divergence of the loss from it: its weights, of one type, where the actor's
// are, in shards if those are. May throw c10::Error.
class ReferencePolicy {
 public:
  // As `actor`, which must outlive this, is now. `config`, `compute` and `ranks` are those that it was made with.
  ReferencePolicy(const Actor& actor, const model::ModelConfig& config, at::ScalarType compute,
                  Communicator* ranks = nullptr)
      : arena_(actor.parameters().to(compute, /*non_blocking=*/false, /*copy=*/true)) {
    if (actor.shards().is_whole()) {
      weights_ = std::make_unique<WholeUnits>(model::ViewWeights(config, actor.manifest(), arena_));
    } else {
      weights_ = std::make_unique<GatheredWeights>(config, actor.manifest(), actor.shards(), arena_, *ranks);
    }
  }

  UnitAccess& weight_units() const { return *weights_; }

 private:
  const at::Tensor arena_;  // [elements of this rank's arena]
  std::unique_ptr<UnitAccess> weights_;
};

}  // namespace syncopate::trainer
