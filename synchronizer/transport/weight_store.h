#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "base/policy_version.h"

namespace syncopate::synchronizer {

// Reads one version's bytes until they are superseded. Not thread-safe; several readers may read one version at a time.
class WeightReader {
 public:
  virtual ~WeightReader() = default;  // unpins the version
  // Copies `range` (within the source's arena) to `to`. Blocks for the copy only. ABORTED reason SUPERSEDED once the
  // memory was taken for a newer version: bytes read before are good, and there are no more. INVALID_ARGUMENT reason
  // BAD_RANGE for a range outside the arena.
  virtual absl::Status Read(ByteRange range, char* to) = 0;
};

// Stores a source's staged versions. Thread-safe.
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  // Fingerprint of the model whose weights, or whose shard of them, are staged here.
  virtual uint64_t fingerprint() const = 0;
  // Hash of the plan in whose wire order weights are staged here. 0: they are in the manifest's own order, which is the
  // wire order of every plan from one unsharded source to whole receivers.
  virtual uint64_t plan_hash() const { return 0; }
  // NOT_FOUND reason VERSION_NOT_STAGED if the version is not (or no longer) staged.
  virtual absl::StatusOr<std::unique_ptr<WeightReader>> Open(PolicyVersion version) = 0;
};

}  // namespace syncopate::synchronizer
