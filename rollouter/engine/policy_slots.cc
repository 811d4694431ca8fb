#include "rollouter/engine/policy_slots.h"

#include "base/status.h"

namespace syncopate::rollouter {

PolicySlots::PolicySlots(const model::ModelConfig& config, const Manifest& manifest) {
  for (int i = 0; i < 2; ++i) {
    arenas_[i] = at::zeros({manifest.arena_bytes() / static_cast<int64_t>(sizeof(float))}, at::kFloat);
    views_[i] = model::ViewWeights(config, manifest, arenas_[i]);
  }
}

void PolicySlots::Install(const PolicyVersion& version, uint64_t digest) {
  SYNCOPATE_CHECK(version > version_);
  live_ = 1 - live_;
  version_ = version;
  digest_ = digest;
}

void PolicySlots::Relabel(const PolicyVersion& version) {
  SYNCOPATE_CHECK(has_weights() && version > version_);
  version_ = version;
}

}  // namespace syncopate::rollouter
