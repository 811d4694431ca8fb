#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"

namespace syncopate::bench {

// The commands of one process of a benchmark by name: what each does with its arguments.
using PeerCommand = std::function<absl::Status(const nlohmann::json&)>;
using PeerCommands = std::map<std::string, PeerCommand>;

// Carries out the lines of standard input, one JSON object each, "do" naming the command, one after the other until
// "quit", its end, or an error. INVALID_ARGUMENT reason BAD_COMMAND for a command that there is not.
absl::Status RunCommands(const PeerCommands& commands);

}  // namespace syncopate::bench
