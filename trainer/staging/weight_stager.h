#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "base/policy_version.h"
#include "synchronizer/transport/send_arena.h"
#include "synchronizer/transport/weight_store.h"

namespace syncopate::trainer {

// Copies the weights that a policy has at this moment to where receivers fetch them from, in wire order and in the
// dtype that they travel in. Used by the thread that owns the policy.
class WeightStager {
 public:
  using Staged = synchronizer::SendArena::Staged;

  virtual ~WeightStager() = default;
  // Describes the tensors that receivers get.
  virtual const Manifest& manifest() const = 0;
  // See SendArena::Stage. Blocks until the copy and its digests are made; never waits for a receiver.
  virtual absl::StatusOr<Staged> Stage(const PolicyVersion& version) = 0;
  virtual synchronizer::WeightStore* store() = 0;
  // The layout that weight syncs plan from (synchronizer/plan/layout_text.h); "": of whole buckets.
  virtual std::string layout() const { return ""; }
  // Memory that the staged versions take.
  virtual int64_t bytes() const = 0;
};

}  // namespace syncopate::trainer
