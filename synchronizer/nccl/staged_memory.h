#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/policy_version.h"

namespace syncopate::synchronizer {

// A staged version in memory that this process's GPU can read. Unpins the version when it is destroyed.
class StagedVersion {
 public:
  virtual ~StagedVersion() = default;
  virtual const char* data() const = 0;
  virtual int64_t bytes() const = 0;
};

// Gives access to a source's staged versions. Thread-safe.
class StagedMemory {
 public:
  virtual ~StagedMemory() = default;
  // Pins a version. If the memory is taken for a newer version nevertheless, the staging thread calls `on_superseded`
  // once, before anything is written to the memory; it must be quick. It is never called after the StagedVersion is
  // destroyed. NOT_FOUND reason VERSION_NOT_STAGED.
  virtual absl::StatusOr<std::unique_ptr<StagedVersion>> Pin(PolicyVersion version,
                                                             std::function<void()> on_superseded) = 0;
};

}  // namespace syncopate::synchronizer
