#pragma once

#include <cstdint>

namespace syncopate::rpc {

// Lets this process open as many files and connections as the system allows it: shells and container runtimes often
// start programs with a soft limit of 1024, which a daemon with a thousand rollouters does not fit into. Returns the
// limit that holds from now on. Call it before threads that open files.
int64_t RaiseDescriptorLimit();

}  // namespace syncopate::rpc
