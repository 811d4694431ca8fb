#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>

#include "base/manifest.h"
#include "base/policy_version.h"
#include "model/model_config.h"
#include "model/transformer.h"

namespace syncopate::rollouter {

// The two weight sets of a rollouter: one serves tokens, the other (the shadow arena) receives the next version. An
// install exchanges their roles, so nothing is copied and no pointer into the live set changes under a decode step.
// The live side belongs to the engine's thread; the shadow bytes belong to whoever receives.
class PolicySlots {
 public:
  // `manifest` is the float32 manifest of `config`. Allocates 2 * manifest.arena_bytes().
  PolicySlots(const model::ModelConfig& config, const Manifest& manifest);

  // The bytes that do not serve: manifest.arena_bytes(), 64-byte aligned.
  char* shadow() { return static_cast<char*>(arenas_[1 - live_].data_ptr()); }
  const char* live() const { return static_cast<const char*>(arenas_[live_].data_ptr()); }

  // The shadow's contents serve from now on as `version`. Only between decode steps.
  void Install(const PolicyVersion& version, uint64_t digest);
  // The live contents are also `version` (equal digests): nothing is exchanged.
  void Relabel(const PolicyVersion& version);

  bool has_weights() const { return !version_.IsNone(); }
  const PolicyVersion& version() const { return version_; }
  uint64_t digest() const { return digest_; }
  const model::TransformerWeights& weights() const { return views_[live_]; }

 private:
  std::array<at::Tensor, 2> arenas_;
  std::array<model::TransformerWeights, 2> views_;
  int live_ = 0;
  PolicyVersion version_;
  uint64_t digest_ = 0;
};

}  // namespace syncopate::rollouter
