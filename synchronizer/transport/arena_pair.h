#pragma once

#include <array>
#include <cstdint>

#include "base/mutex.h"
#include "synchronizer/transport/host_buffer.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::synchronizer {

// Two host buffers of one size whose roles an install exchanges. The target of receivers that generate no tokens:
// benchmarks, tools, tests. Thread-safe, except that shadow() belongs to one receiver.
class ArenaPair final : public WeightTarget {
 public:
  explicit ArenaPair(int64_t arena_bytes) : buffers_{HostBuffer(arena_bytes), HostBuffer(arena_bytes)} {}

  char* shadow() override;
  const char* live() const;
  PolicyVersion serving() const;

  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                        absl::Duration deadline) override;
  absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override;
  bool can_copy_live() const override { return true; }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override;

 private:
  mutable Mutex mutex_;
  std::array<HostBuffer, 2> buffers_ ABSL_GUARDED_BY(mutex_);
  int live_ ABSL_GUARDED_BY(mutex_) = 0;
  PolicyVersion serving_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::synchronizer
