#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/policy_version.h"
#include "model/transformer.h"
#include "rollouter/engine/adapter_sets.h"
#include "rollouter/engine/engine_backend.h"

namespace syncopate::rollouter {

// The policy version of an engine's live weights. The live side belongs to the engine's thread; the shadow bytes belong
// to the receiver. If the backend has adapter sets, this decides which of them serves for what.
class ServingPolicy {
 public:
  // `arenas` must outlive this object.
  explicit ServingPolicy(WeightArenas* arenas) : arenas_(arenas), has_sets_(arenas->adapter_sets() > 0) {}

  char* shadow() { return arenas_->shadow(); }
  const char* live() const { return arenas_->live(); }

  // Makes the shadow's contents serve as `version`. Call only between decode steps; without adapter sets also when no
  // work on the weights is in progress. After an error the older version still serves. Errors of WeightArenas::Exchange.
  absl::Status Install(const PolicyVersion& version, uint64_t digest,
                       absl::Duration deadline = absl::InfiniteDuration());
  // Gives the live contents the newer `version` (equal digests): no bytes are exchanged.
  void Relabel(const PolicyVersion& version);
  // Declares the live contents invalid: no version serves until the next Install.
  void Invalidate();

  // The rest is for backends with adapter sets; with others has_sets() is false, and the calls do nothing.
  bool has_sets() const { return has_sets_; }
  // False while no set is free that could receive. Any thread may call it.
  bool has_shadow() const { return !has_sets_ || arenas_->shadow_set() != AdapterSets::kNone; }
  int32_t live_set() const { return sets_.live(); }
  // Announce each plan at its launch and at its end; see AdapterSets.
  void BeginPlan();
  void EndPlan();
  // A request is answered by one version from the first token to the last. Precondition: has_sets(), and there are
  // weights.
  struct Pinned {
    int32_t set = 0;
    PolicyVersion version;
  };
  Pinned Pin();
  void Unpin();
  // The version that requests are pinned to; none without any.
  PolicyVersion pinned_version() const { return sets_.pinned() == AdapterSets::kNone ? PolicyVersion() : pinned_; }

  bool has_weights() const { return !version_.IsNone(); }
  const PolicyVersion& version() const { return version_; }
  uint64_t digest() const { return digest_; }
  const model::TransformerWeights& weights() const { return arenas_->weights(); }

 private:
  // Tells the arenas which set receives, if that has changed.
  void ChooseShadow();

  WeightArenas* const arenas_;
  const bool has_sets_;
  AdapterSets sets_;
  PolicyVersion pinned_;  // of the set sets_.pinned()
  PolicyVersion version_;
  uint64_t digest_ = 0;
};

}  // namespace syncopate::rollouter
