#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/policy_version.h"
#include "model/transformer.h"
#include "rollouter/engine/engine_backend.h"

namespace syncopate::rollouter {

// Which policy version the live weights of an engine are. The live side belongs to the engine's thread; the shadow
// bytes belong to whoever receives.
class ServingPolicy {
 public:
  // `arenas` must outlive this object.
  explicit ServingPolicy(WeightArenas* arenas) : arenas_(arenas) {}

  char* shadow() { return arenas_->shadow(); }
  const char* live() const { return arenas_->live(); }

  // The shadow's contents serve from now on as `version`. Only between decode steps, when no work on the weights is
  // under way. After an error what served serves.
  absl::Status Install(const PolicyVersion& version, uint64_t digest,
                       absl::Duration deadline = absl::InfiniteDuration());
  // The live contents are also `version` (equal digests): nothing is exchanged.
  void Relabel(const PolicyVersion& version);
  // The live contents are garbage: nothing serves until the next Install.
  void Invalidate();

  bool has_weights() const { return !version_.IsNone(); }
  const PolicyVersion& version() const { return version_; }
  uint64_t digest() const { return digest_; }
  const model::TransformerWeights& weights() const { return arenas_->weights(); }

 private:
  WeightArenas* const arenas_;
  PolicyVersion version_;
  uint64_t digest_ = 0;
};

}  // namespace syncopate::rollouter
