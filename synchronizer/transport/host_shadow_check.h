#pragma once

#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::synchronizer {

// ShadowCheck over host memory: the thread that announces the last byte of a bucket digests and checks that bucket,
// while it is still in the cache. Ignores streams. Thread-safe.
class HostShadowCheck final : public ShadowCheck {
 public:
  // `shadow` is borrowed.
  HostShadowCheck(const char* shadow, ShadowContents contents);

  void Arrived(ByteRange destination, void* stream) override;
  absl::StatusOr<std::vector<uint64_t>> Finish(absl::Duration deadline) override;

 private:
  absl::Status CheckNumbers(ByteRange bucket) const;
  // Counts the bytes; returns the buckets that they complete.
  std::vector<size_t> Count(ByteRange arrived) ABSL_LOCKS_EXCLUDED(mutex_);

  const char* const shadow_;
  const ShadowContents contents_;
  const std::vector<size_t> order_;  // indices of buckets, by begin

  Mutex mutex_;
  std::vector<int64_t> missing_ ABSL_GUARDED_BY(mutex_);  // bytes, by bucket
  std::vector<uint64_t> digests_ ABSL_GUARDED_BY(mutex_);
  absl::Status non_finite_ ABSL_GUARDED_BY(mutex_);  // the first error found
};

}  // namespace syncopate::synchronizer
