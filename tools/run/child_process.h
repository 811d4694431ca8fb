#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/run/launch.h"

namespace syncopate::run {

// Starts a daemon in a process group of its own, so that a terminal's Ctrl-C does not reach it. Standard input is
// /dev/null; output and error are appended to launch.log, or go to this process's if that is empty. The child is killed
// when the calling thread ends, so call it from a thread that lives as long as the run. UNAVAILABLE (reason
// CANNOT_START) if the log or the process cannot be made; a binary that cannot be executed exits with 127 and says so
// in its log.
absl::StatusOr<pid_t> StartChild(const Launch& launch);

// NOT_FOUND (reason NO_BINARY) that names the first of `roles` whose daemon is not in `binary_dir`.
absl::Status CheckBinaries(const std::string& binary_dir, const std::vector<std::string>& roles);

// The folder of the running executable.
std::string OwnBinaryFolder();

}  // namespace syncopate::run
