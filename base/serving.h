#pragma once

namespace syncopate {

// Sets this process up for serving: for programs that serve; tests do without. Call it in main, before any thread.
// - Ends the search for deadlocks that Debian's absl does at every lock, under one spin lock for the whole process: it
//   takes a tenth of a busy daemon's time.
// - Freed memory is kept for the next message, within the bounds that glibc would let itself grow to, instead of being
//   given back to the kernel: taking it again, page by page, took a sixth of the time of who gets many answers.
void PrepareToServe();

}  // namespace syncopate
