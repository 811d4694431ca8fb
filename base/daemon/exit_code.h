#pragma once

#include "absl/status/status.h"

namespace syncopate::daemon {

// Exit codes of every daemon, for the supervisor that decides about a restart.
inline constexpr int kExitDone = 0;       // the run is complete, or the process was asked to stop
inline constexpr int kExitFailed = 1;     // any other error: see its message
inline constexpr int kExitBadConfig = 2;  // configuration, command line or credentials are wrong: do not restart
inline constexpr int kExitFenced = 3;     // another process has taken this one's place: do not restart
inline constexpr int kExitLostPeer = 4;   // this process has lost a peer or a device: a new process may succeed
inline constexpr int kExitNoSpace = 5;    // the disk is full and the process could not start: restart it each second

// The exit code for an error, by its reason (base/status.h); kExitFailed for reasons that are not listed.
int ToExitCode(const absl::Status& status);

}  // namespace syncopate::daemon
