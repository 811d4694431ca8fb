#pragma once

namespace syncopate::synchronizer {

inline constexpr int kFaultPlaces = 4;

// Runs one member of a weight sync as a process of its own, which carries out the commands from a socket
// (peer_protocol.h) until the other end closes the socket; returns the exit code. `args`: CONTROL_FD TRANSPORT
// source|receiver RANK PLACE INCARNATION; kFaultPlaces places share the available GPUs.
int RunFaultPeer(char** args);

}  // namespace syncopate::synchronizer
