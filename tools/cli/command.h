#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace syncopate::cli {

// What the parsed command line asks for; returns the exit code of the process.
using Command = std::function<int()>;

// Type names of options and positionals: what --help shows, and what completion offers.
inline constexpr char kFileType[] = "FILE";
inline constexpr char kFolderType[] = "DIR";
inline constexpr char kSettingType[] = "KEY=VALUE";               // of the run configuration
inline constexpr char kFileOrSettingType[] = "FILE [KEY=VALUE]";  // a file, or settings alone

// Each adds one subcommand to `app` and, when the command line names it, sets *chosen. Both outlive the parsing.
void AddCompletionCommand(CLI::App* app, Command* chosen);
void AddConfigCommand(CLI::App* app, Command* chosen);
void AddCtlCommand(CLI::App* app, Command* chosen);
void AddDataCommand(CLI::App* app, Command* chosen);
void AddDoctorCommand(CLI::App* app, Command* chosen);
void AddEventsCommand(CLI::App* app, Command* chosen);
void AddExportCommand(CLI::App* app, Command* chosen);
void AddGenerateCommand(CLI::App* app, Command* chosen);
void AddK8sCommand(CLI::App* app, Command* chosen);
void AddReplicaCommand(CLI::App* app, Command* chosen);
void AddReportCommand(CLI::App* app, Command* chosen);
// `program` is how the process was called.
void AddRunCommand(CLI::App* app, const std::string& program, Command* chosen);
void AddTokenizeCommand(CLI::App* app, Command* chosen);

// After a parse that missed a subcommand: the word that stands where one should, with the nearest one, as a sentence;
// "" if there is no such word.
std::string UnknownCommand(const CLI::App& app);

// All of them, and what belongs to the command line as a whole.
void AddCommands(CLI::App* app, const std::string& program, Command* chosen);

}  // namespace syncopate::cli
