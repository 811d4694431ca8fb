#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace syncopate::cli {

// Carries out the parsed command line; returns the exit code of the process.
using Command = std::function<int()>;

// Type names of options and positionals, shown by --help; completion depends on them.
inline constexpr char kFileType[] = "FILE";
inline constexpr char kFolderType[] = "DIR";
inline constexpr char kSettingType[] = "KEY=VALUE";               // of the run configuration
inline constexpr char kFileOrSettingType[] = "FILE [KEY=VALUE]";  // a file, or settings alone

// Each function adds one subcommand to `app` and, when the command line names it, sets *chosen. Both must outlive the
// parsing.
void AddCompletionCommand(CLI::App* app, Command* chosen);
void AddConfigCommand(CLI::App* app, Command* chosen);
void AddCtlCommand(CLI::App* app, Command* chosen);
void AddDataCommand(CLI::App* app, Command* chosen);
void AddDoctorCommand(CLI::App* app, Command* chosen);
void AddEventsCommand(CLI::App* app, Command* chosen);
void AddEvalCommand(CLI::App* app, const std::string& program, Command* chosen);
void AddExportCommand(CLI::App* app, Command* chosen);
void AddGatewayCommand(CLI::App* app, Command* chosen);
void AddGenerateCommand(CLI::App* app, Command* chosen);
void AddK8sCommand(CLI::App* app, Command* chosen);
void AddReplicaCommand(CLI::App* app, Command* chosen);
void AddReportCommand(CLI::App* app, Command* chosen);
// `program` is the name with which the process was started.
void AddRunCommand(CLI::App* app, const std::string& program, Command* chosen);
void AddServeCommand(CLI::App* app, Command* chosen);
void AddTokenizeCommand(CLI::App* app, Command* chosen);

// For a parse without a subcommand: a sentence with the word in its place and the nearest subcommand; "" if there is no
// such word.
std::string UnknownCommand(const CLI::App& app);

// Adds all subcommands, and the options of the command line as a whole.
void AddCommands(CLI::App* app, const std::string& program, Command* chosen);

}  // namespace syncopate::cli
