#pragma once

#include <functional>

#include "absl/status/status.h"
#include "services/daemon/daemon.h"

namespace syncopate::daemon {

// What a process does that is not rank 0 of its group.
struct Attendant {
  std::function<absl::Status()> run = nullptr;  // all of its work, on a thread of its own
  // From the calling thread, while run() is under way. None of them blocks.
  std::function<void()> send_heartbeat = nullptr;
  std::function<bool()> ready = nullptr;
  std::function<void()> stop = nullptr;  // ends the waits of run() soon
};

// Does the work, with a heartbeat each second. Until it is ready the daemon's health is `starting`, and a request to stop
// ends it; later rank 0 says when it stops. Blocks until run() has returned, and returns what that did.
absl::Status AttendRank0(Daemon* daemon, const Attendant& attendant, const absl::Status& starting);

}  // namespace syncopate::daemon
