#include "synchronizer/transport/arena_pair.h"

#include <cstring>

namespace syncopate::synchronizer {

char* ArenaPair::shadow() {
  MutexLock lock(&mutex_);
  return buffers_[1 - live_].data();
}

const char* ArenaPair::live() const {
  MutexLock lock(&mutex_);
  return buffers_[live_].data();
}

PolicyVersion ArenaPair::serving() const {
  MutexLock lock(&mutex_);
  return serving_;
}

absl::StatusOr<InstallResult> ArenaPair::Install(const PolicyVersion& version, uint64_t, absl::Duration) {
  MutexLock lock(&mutex_);
  live_ = 1 - live_;
  serving_ = version;
  return InstallResult();
}

absl::StatusOr<InstallResult> ArenaPair::Relabel(const PolicyVersion& version, absl::Duration) {
  MutexLock lock(&mutex_);
  serving_ = version;
  return InstallResult();
}

absl::Status ArenaPair::CopyLive(const std::vector<ByteRange>& ranges) {
  MutexLock lock(&mutex_);
  for (const ByteRange& range : ranges) {
    std::memcpy(buffers_[1 - live_].data() + range.begin, buffers_[live_].data() + range.begin,
                static_cast<size_t>(range.size()));
  }
  return absl::OkStatus();
}

}  // namespace syncopate::synchronizer
