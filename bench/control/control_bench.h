#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "bench/control/control_case.h"
#include "bench/control/control_result.h"

namespace syncopate::bench {

struct ControlBenchOptions {
  std::string binary_dir;  // of the programs to start
  // Called with a sentence on what happens next, for the user. May be null.
  std::function<void(const std::string&)> progress = nullptr;
};

// Measures the control plane: daemons as processes of this machine, their clients in this process. Blocks; call it from
// a thread that outlives it, with SIGPIPE ignored. No process is left when it returns, nor when the calling process is
// killed. INVALID_ARGUMENT of ControlCase::Validate; errors of ControlHosts; INTERNAL reason LOAD_FAILED if calls
// failed.
absl::StatusOr<ControlResult> RunControlBench(const ControlCase& control_case, const ControlBenchOptions& options);

}  // namespace syncopate::bench
