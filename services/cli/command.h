#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace syncopate::services {

// What the parsed command line asks for; returns the exit code of the process.
using Command = std::function<int()>;

// Each adds one subcommand to `app` and, when the command line names it, sets *chosen. Both outlive the parsing.
void AddConfigCommand(CLI::App* app, Command* chosen);
void AddCtlCommand(CLI::App* app, Command* chosen);
void AddEventsCommand(CLI::App* app, Command* chosen);
// `program` is how the process was called.
void AddRunCommand(CLI::App* app, const std::string& program, Command* chosen);

}  // namespace syncopate::services
