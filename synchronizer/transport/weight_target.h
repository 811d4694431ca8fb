#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/policy_version.h"

namespace syncopate::synchronizer {

struct InstallResult {
  double pause_seconds = 0;  // how long no decode step could run because of it
};

// Where a receiver's weights live: what serves tokens, and a shadow of the same size that does not. The seam between
// the sync protocol and an inference engine.
class WeightTarget {
 public:
  virtual ~WeightTarget() = default;
  // The bytes that do not serve: manifest.arena_bytes(), padding zero. They belong to the receiver between two
  // installs, and are other bytes after each.
  virtual char* shadow() = 0;
  // Makes the shadow's contents serve as `version`, between two decode steps. Blocks until done or `deadline` has
  // passed; after an error nothing has changed and nothing will.
  virtual absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                                absl::Duration deadline) = 0;
  // The bytes that serve are those of `version` too: only the label changes. Otherwise as Install.
  virtual absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) = 0;
};

}  // namespace syncopate::synchronizer
