#pragma once

namespace syncopate::synchronizer {

inline constexpr int kFaultPlaces = 4;

// One member of a weight sync as a process of its own, which does what it is told over a socket (peer_protocol.h) until
// that is hung up on. `args`: CONTROL_FD TRANSPORT source|receiver RANK PLACE INCARNATION; kFaultPlaces places share
// the GPUs there are. The exit code.
int RunFaultPeer(char** args);

}  // namespace syncopate::synchronizer
