#pragma once

namespace syncopate {

// Ends the search for deadlocks that Debian's absl does at every lock, under one spin lock for the whole process: it
// takes a tenth of a busy daemon's time. For programs that serve; tests keep it. Call it in main, before any thread.
void StopDeadlockSearch();

}  // namespace syncopate
