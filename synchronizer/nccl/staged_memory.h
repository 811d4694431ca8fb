#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/policy_version.h"

namespace syncopate::synchronizer {

// A staged version where this process's GPU reads it. Lets the version go when it is destroyed.
class StagedVersion {
 public:
  virtual ~StagedVersion() = default;
  virtual const char* data() const = 0;
  virtual int64_t bytes() const = 0;
};

// Where a source's staged versions lie. Thread-safe.
class StagedMemory {
 public:
  virtual ~StagedMemory() = default;
  // Pins a version. If the memory is needed for a newer one nevertheless, `on_superseded` is called before anything is
  // written to it, once, by the staging thread; it is quick, and never called after the StagedVersion is destroyed.
  // NOT_FOUND reason VERSION_NOT_STAGED.
  virtual absl::StatusOr<std::unique_ptr<StagedVersion>> Pin(PolicyVersion version,
                                                             std::function<void()> on_superseded) = 0;
};

}  // namespace syncopate::synchronizer
