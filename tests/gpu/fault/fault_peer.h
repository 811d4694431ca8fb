#pragma once

namespace syncopate::synchronizer {

// One member of a weight sync as a process of its own, which does what it is told over a socket (peer_protocol.h) until
// that is hung up on. `args`: CONTROL_FD TRANSPORT source|receiver RANK DEVICE INCARNATION. The exit code.
int RunFaultPeer(char** args);

}  // namespace syncopate::synchronizer
