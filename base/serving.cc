#include "base/serving.h"

#include <malloc.h>

#include "base/mutex.h"

namespace syncopate {
namespace {

constexpr int kMebibyte = 1 << 20;

}  // namespace

void PrepareToServe() {
#ifndef SYNCOPATE_TSAN
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  ::mallopt(M_TRIM_THRESHOLD, 64 * kMebibyte);
  ::mallopt(M_MMAP_THRESHOLD, 32 * kMebibyte);
  ::mallopt(M_ARENA_MAX, 16);  // each keeps that much: hosts have hundreds of cores, and glibc makes eight for each
}

}  // namespace syncopate
