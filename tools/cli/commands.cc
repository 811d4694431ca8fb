#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/bench_command.h"
#include "services/config/schema.h"
#include "tools/cli/command.h"

namespace syncopate::cli {
namespace {

std::string Nearest(const std::string& word, const std::vector<const CLI::App*>& commands) {
  const auto edits = [&word](const CLI::App* command) { return config::EditDistance(word, command->get_name()); };
  const auto nearest = std::min_element(commands.begin(), commands.end(),
                                        [&](const CLI::App* a, const CLI::App* b) { return edits(a) < edits(b); });
  return (*nearest)->get_name();
}

}  // namespace

std::string UnknownCommand(const CLI::App& app) {
  const CLI::App* last = &app;
  std::string path = app.get_name();
  while (!last->get_subcommands().empty()) {
    last = last->get_subcommands().back();
    absl::StrAppend(&path, " ", last->get_name());
  }
  const std::vector<const CLI::App*> commands = last->get_subcommands([](const CLI::App*) { return true; });
  for (const std::string& word : last->remaining()) {
    if (commands.empty() || absl::StartsWith(word, "-")) continue;
    return absl::StrCat(path, " has no command '", word, "'; the nearest is ", Nearest(word, commands), ", and `", path,
                        " --help` lists them all");
  }
  return "";
}

void AddCommands(CLI::App* app, const std::string& program, Command* chosen) {
  app->name("syncopate");
  app->description("Asynchronous reinforcement learning for language models");
  app->set_version_flag("--version", SYNCOPATE_VERSION);
  app->require_subcommand(1);
  bench::AddBenchCommand(app, chosen);
  AddCompletionCommand(app, chosen);
  AddConfigCommand(app, chosen);
  AddCtlCommand(app, chosen);
  AddDataCommand(app, chosen);
  AddDoctorCommand(app, chosen);
  AddEvalCommand(app, program, chosen);
  AddEventsCommand(app, chosen);
  AddExportCommand(app, chosen);
  AddGatewayCommand(app, chosen);
  AddGenerateCommand(app, chosen);
  AddK8sCommand(app, chosen);
  AddReplicaCommand(app, chosen);
  AddReportCommand(app, chosen);
  AddRunCommand(app, program, chosen);
  AddServeCommand(app, chosen);
  AddTokenizeCommand(app, chosen);
}

}  // namespace syncopate::cli
