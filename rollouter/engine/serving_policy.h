#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/policy_version.h"
#include "model/transformer.h"
#include "rollouter/engine/engine_backend.h"

namespace syncopate::rollouter {

// The policy version of an engine's live weights. The live side belongs to the engine's thread; the shadow bytes belong
// to the receiver.
class ServingPolicy {
 public:
  // `arenas` must outlive this object.
  explicit ServingPolicy(WeightArenas* arenas) : arenas_(arenas) {}

  char* shadow() { return arenas_->shadow(); }
  const char* live() const { return arenas_->live(); }

  // Makes the shadow's contents serve as `version`. Call only between decode steps, when no work on the weights is in
  // progress. After an error the older version still serves. Errors of WeightArenas::Exchange.
  absl::Status Install(const PolicyVersion& version, uint64_t digest,
                       absl::Duration deadline = absl::InfiniteDuration());
  // Gives the live contents the newer `version` (equal digests): no bytes are exchanged.
  void Relabel(const PolicyVersion& version);
  // Declares the live contents invalid: no version serves until the next Install.
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
