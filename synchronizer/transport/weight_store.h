#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "base/policy_version.h"

namespace syncopate::synchronizer {

// One version's bytes, while they last. Not thread-safe; several readers of one version may read at the same time.
class WeightReader {
 public:
  virtual ~WeightReader() = default;  // lets the version go
  // Copies `range` (within the source's arena) to `to`. Blocks for the copy only. ABORTED reason SUPERSEDED once the
  // memory has been taken for a newer version: what was read before is good, there is no more. INVALID_ARGUMENT
  // reason BAD_RANGE for a range outside the arena.
  virtual absl::Status Read(ByteRange range, char* to) = 0;
};

// Where a source keeps staged versions. Thread-safe.
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  // Of the model whose weights, or whose shard of them, are staged here.
  virtual uint64_t fingerprint() const = 0;
  // Of the plan in whose wire order weights are staged here; 0: in the manifest's own order, which every plan of one
  // unsharded source and whole receivers has.
  virtual uint64_t plan_hash() const { return 0; }
  // NOT_FOUND reason VERSION_NOT_STAGED if the version is not there (any more).
  virtual absl::StatusOr<std::unique_ptr<WeightReader>> Open(PolicyVersion version) = 0;
};

}  // namespace syncopate::synchronizer
