#pragma once

#include <cstdint>

namespace syncopate {

// Prepares this process for serving; daemons need it, tests do not. Call it in main, before any thread starts.
// - Turns off absl's deadlock detection, which Debian's build does at every lock under one process-wide spin lock; it
//   takes a tenth of a busy daemon's time.
// - Keeps freed memory for the next message instead of returning it to the kernel: getting it back page by page took a
//   sixth of the time of a process that receives many answers. glibc keeps it in one arena per core, at most 16;
//   FreedMemoryWatch returns memory that the daemon does not need again.
void PrepareToServe();

// Cores that this process may run on.
int UsableCores();

// Freed bytes that the C library keeps, in all arenas. 0 if another malloc replaces the C library's.
int64_t FreedBytes();
// Returns all freed memory that forms whole pages to the kernel. Blocks for milliseconds per GiB.
void GiveFreedMemoryBack();

// Decides when freed memory is returned to the kernel: after a flood of messages or one large step has left memory that
// nothing has needed since. Memory that is freed and reused all the time stays. Pure; not thread-safe.
class FreedMemoryWatch {
 public:
  // `keep_bytes`: up to this much freed memory, nothing is returned.
  explicit FreedMemoryWatch(int64_t keep_bytes, int looks = 10) : keep_bytes_(keep_bytes), looks_(looks) {}

  // Call at even intervals with FreedBytes(). True if more than `keep_bytes` were unused at each of the last `looks`
  // calls: call GiveFreedMemoryBack() now.
  bool ShouldGiveBack(int64_t freed_bytes);

 private:
  const int64_t keep_bytes_;
  const int looks_;
  int over_ = 0;  // consecutive calls that found more than keep_bytes_
};

}  // namespace syncopate
