#include "bench/process/command_lines.h"

#include <iostream>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/process/json_fields.h"

namespace syncopate::bench {

using nlohmann::json;

absl::Status RunCommands(const PeerCommands& commands) {
  for (std::string line; std::getline(std::cin, line);) {
    const json arguments = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::string name = arguments.is_object() ? TextIn(arguments, "do") : "";
    if (name == "quit") return absl::OkStatus();
    auto command = commands.find(name);
    if (command == commands.end()) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_COMMAND", absl::StrCat("no such command: ", line));
    }
    SYNCOPATE_RETURN_IF_ERROR(Annotate(command->second(arguments), name));
  }
  return absl::OkStatus();
}

}  // namespace syncopate::bench
