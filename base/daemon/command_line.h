#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::daemon {

// The command line of a daemon: `syncopate-<role> CONFIG [--exit-on-completion] [--interrupted-code=N]
// [--insecure-bind] [--accept-reward-change] [section.key=value ...]`.
struct CommandLine {
  std::string config;                  // path of the file
  std::vector<std::string> overrides;  // in order; --insecure-bind is run.insecure_bind=true, after the others
  bool exit_on_completion = false;     // end with code 0 when the run is complete, instead of staying for the next one
  bool accept_reward_change = false;   // trainer only: a resumed run may use another reward than before
  // Exit code after an orderly stop by a signal. Use 143 under a supervisor that takes 0 for "the run is complete",
  // such as a Kubernetes Job.
  int interrupted_code = 0;
  bool help = false;  // --help was given: ignore the other fields
};

// Parses `words`, the arguments without the program's name; flags may stand anywhere. INVALID_ARGUMENT (reason
// BAD_COMMAND_LINE) for an unknown flag, no file, or a second one.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& words);

// The text that --help and a wrong command line print.
std::string MakeUsage(const std::string& role);

}  // namespace syncopate::daemon
