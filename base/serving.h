#pragma once

#include <cstdint>

namespace syncopate {

// Sets this process up for serving: for programs that serve; tests do without. Call it in main, before any thread.
// - Ends the search for deadlocks that Debian's absl does at every lock, under one spin lock for the whole process: it
//   takes a tenth of a busy daemon's time.
// - Freed memory is kept for the next message, instead of being given back to the kernel: taking it again, page by page,
//   took a sixth of the time of who gets many answers. It is kept in as many places (arenas of glibc) as there are cores,
//   at most 16; what a daemon never needs again goes back by FreedMemoryWatch.
void PrepareToServe();

// Cores that this process may run on.
int UsableCores();

// Bytes that were freed and that the C library keeps, of all arenas. 0 where another malloc stands in for it.
int64_t FreedBytes();
// Gives all of them back to the kernel that make up whole pages. Blocks for milliseconds a GiB.
void GiveFreedMemoryBack();

// Decides when freed memory goes back: what a flood of messages or one large step has left, and nothing has needed since.
// Memory that is freed and taken again all the time stays. Pure; not thread-safe.
class FreedMemoryWatch {
 public:
  // `keep_bytes`: that much freed memory is no reason to act.
  explicit FreedMemoryWatch(int64_t keep_bytes, int looks = 10) : keep_bytes_(keep_bytes), looks_(looks) {}

  // Call at even intervals with FreedBytes(). True: more than `keep_bytes` were unused at each of the last `looks` calls;
  // give it back now.
  bool ShouldGiveBack(int64_t freed_bytes);

 private:
  const int64_t keep_bytes_;
  const int looks_;
  int over_ = 0;  // looks in a row that found more
};

}  // namespace syncopate
