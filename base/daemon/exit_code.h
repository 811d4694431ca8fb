#pragma once

#include "absl/status/status.h"

namespace syncopate::daemon {

// Exit codes of every daemon, for whoever starts them again or does not.
inline constexpr int kExitDone = 0;       // the run is complete, or the process was asked to stop
inline constexpr int kExitFailed = 1;     // anything else: its message says what
inline constexpr int kExitBadConfig = 2;  // configuration, command line or credentials are wrong: do not restart
inline constexpr int kExitFenced = 3;     // another process has taken this one's place: do not restart
inline constexpr int kExitLostPeer = 4;   // a peer or a device is lost to this process: a fresh one may do better
inline constexpr int kExitNoSpace = 5;    // it could not start, as the disk is full: start it again each second

// By the error's reason (base/status.h); reasons that are not listed give kExitFailed.
int ExitCodeOf(const absl::Status& status);

}  // namespace syncopate::daemon
