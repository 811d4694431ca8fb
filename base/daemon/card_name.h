#pragma once

#include <string>

namespace syncopate::daemon {

// The name of the device on which a process computes, equal for two processes iff they share it (run.share_gpu):
// `gpu_uuid`, or for a process on the CPU one of this boot of this machine.
std::string CardName(const std::string& gpu_uuid);

}  // namespace syncopate::daemon
