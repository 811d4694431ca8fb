#pragma once

#include <optional>
#include <string>
#include <vector>

namespace syncopate::cli {

// A run of this machine, as a command line asks for it.
struct RunHere {
  std::string config;                             // YAML file
  std::vector<std::string> overrides = {};        // section.key=value
  bool quiet = false;                             // print the end only
  bool json = false;                              // print one JSON object a line
  bool accept_reward_change = false;              // a resume may change the run's reward
  std::optional<std::string> web = std::nullopt;  // address of the run's page
};

// Starts every daemon, waits for the end of the run and returns the exit code. `program` is the name with which this
// process was started. Errors of the configuration are printed. Blocks.
int RunOnThisMachine(const RunHere& here, const std::string& program);

}  // namespace syncopate::cli
