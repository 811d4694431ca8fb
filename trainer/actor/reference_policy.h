#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <utility>

#include "model/model_config.h"
#include "model/transformer.h"
#include "trainer/actor/actor.h"
#include "trainer/actor/policy_snapshot.h"
#include "trainer/memory/state_part.h"

namespace syncopate::trainer {

// The reference policy of the loss's divergence: a copy of the actor's weights in one dtype, on the actor's device,
// sharded over ranks as the actor's weights are. If the actor trains adapters, the reference is its base, and nothing
// is copied. Not thread-safe. May throw c10::Error.
class ReferencePolicy {
 public:
  // Copies the present weights of `actor`, which must outlive this object. `config`, `compute` and `ranks` are those of
  // `actor`. `arena`: memory of the actor's device, of kind kFrozen, with room for its parameters in `compute`; null:
  // memory of the device's allocator.
  ReferencePolicy(Actor& actor, const model::ModelConfig& config, at::ScalarType compute, Communicator* ranks = nullptr,
                  std::unique_ptr<StateArena> arena = nullptr)
      : base_of_(config.lora.enabled() ? &actor : nullptr),
        memory_(std::move(arena)),
        weights_of_(base_of_ != nullptr ? at::empty({0}) : MakeCopy(actor, compute, memory_.get())),
        make_units_([this, &actor, config, ranks] { MakeUnits(actor, config, ranks); }),
        state_({memory_.get()}, static_cast<int64_t>(weights_of_.nbytes()),
               {.before_offload =
                    [this] {
                      units_ = nullptr;
                      return absl::OkStatus();
                    },
                .after_load = make_units_}) {
    make_units_();
  }

  // Makes the actor's present weights the reference, and keeps them in host memory for checkpoints, as no start of the
  // run gives them again. Actor and state() must be on the device. Not with adapters.
  void Renew(const Actor& actor);
  // Makes this rank's shards of the reference in `source` the reference, and keeps them as Renew() does. `source` must
  // have one.
  void Restore(const Actor& actor, const PolicySource& source);
  // Adds what Renew() or Restore() has kept to a snapshot of the same actor, which shares the memory; nothing before
  // the first of those calls.
  void AddTo(PolicySnapshot* snapshot) const;
  // Returns to the state before the first Renew(): nothing is kept. The weights stay until the next one.
  void Forget() { kept_ = at::Tensor(); }

  // Call only while state() is on the device.
  UnitAccess& weight_units() const { return base_of_ != nullptr ? base_of_->base_units() : *units_; }
  StatePart& state() { return state_; }
  // Bytes of `arena` that are on the device.
  int64_t arena_bytes_on_device() const { return memory_ == nullptr ? 0 : memory_->device_bytes(); }

 private:
  static at::Tensor MakeCopy(const Actor& actor, at::ScalarType compute, const StateArena* memory) {
    if (memory == nullptr) return actor.parameters().to(compute, /*non_blocking=*/false, /*copy=*/true);
    const at::Tensor copy =
        at::from_blob(memory->data(), actor.parameters().sizes(), actor.parameters().options().dtype(compute));
    return copy.copy_(actor.parameters());
  }
  void MakeUnits(const Actor& actor, const model::ModelConfig& config, Communicator* ranks) {
    if (base_of_ != nullptr) return;
    if (actor.shards().is_whole()) {
      units_ = std::make_unique<WholeUnits>(model::ViewWeights(config, actor.manifest(), weights_of_));
    } else {
      units_ = std::make_unique<GatheredWeights>(config, actor.manifest(), actor.shards(), weights_of_, *ranks);
    }
  }

  // Copies kept_ to the device.
  void Write();

  Actor* const base_of_;  // null unless it trains adapters
  const std::unique_ptr<StateArena> memory_;
  const at::Tensor weights_of_;  // [elements of this rank's arena]
  // The reference's weights in float32 on the host; undefined if the reference is what the run began with. Its memory is never
  // written again: snapshots share it.
  at::Tensor kept_;
  const std::function<void()> make_units_;
  StatePart state_;
  std::unique_ptr<UnitAccess> units_;  // null while the state is away, and for the base of an actor
};

}  // namespace syncopate::trainer
