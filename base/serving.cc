#include "base/serving.h"

#include <malloc.h>
#include <sched.h>

#include <algorithm>

#include "base/mutex.h"

namespace syncopate {
namespace {

constexpr int kMebibyte = 1 << 20;
constexpr int kMostArenas = 16;  // each keeps up to M_TRIM_THRESHOLD, and hosts have hundreds of cores

}  // namespace

void PrepareToServe() {
#ifndef SYNCOPATE_TSAN
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  ::mallopt(M_TRIM_THRESHOLD, 64 * kMebibyte);
  ::mallopt(M_MMAP_THRESHOLD, 32 * kMebibyte);
  // glibc's default is eight arenas per core, most of which only keep memory that was used once.
  ::mallopt(M_ARENA_MAX, std::clamp(UsableCores(), 1, kMostArenas));
}

int UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

int64_t FreedBytes() { return static_cast<int64_t>(::mallinfo2().fordblks); }

void GiveFreedMemoryBack() { ::malloc_trim(0); }

bool FreedMemoryWatch::ShouldGiveBack(int64_t freed_bytes) {
  over_ = freed_bytes > keep_bytes_ ? over_ + 1 : 0;
  if (over_ < looks_) return false;
  over_ = 0;
  return true;
}

}  // namespace syncopate
