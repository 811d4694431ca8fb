#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"

namespace syncopate::bench {

// The commands of one process of a benchmark, by name; the function gets the arguments.
using PeerCommand = std::function<absl::Status(const nlohmann::json&)>;
using PeerCommands = std::map<std::string, PeerCommand>;

// Carries out the lines of standard input, one JSON object each, one after the other until "quit", end of input, or an
// error. "do" names the command. INVALID_ARGUMENT reason BAD_COMMAND for an unknown command.
absl::Status RunCommands(const PeerCommands& commands);

}  // namespace syncopate::bench
