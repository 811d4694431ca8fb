#pragma once

#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace syncopate::bench {

// The resources that a process of this machine has used so far.
struct ProcessUsage {
  double cpu_seconds = 0;  // of all its threads, in user and system mode
  int64_t resident_bytes = 0;
  int64_t threads = 0;
  int64_t descriptors = 0;
};

// UNAVAILABLE reason PEER_GONE if there is no such process, or it belongs to another user.
absl::StatusOr<ProcessUsage> ReadProcessUsage(pid_t pid);

}  // namespace syncopate::bench
