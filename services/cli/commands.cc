#include "services/bench/bench_command.h"
#include "services/cli/command.h"

namespace syncopate::services {

void AddCommands(CLI::App* app, const std::string& program, Command* chosen) {
  app->name("syncopate");
  app->description("Asynchronous reinforcement learning for language models");
  app->set_version_flag("--version", SYNCOPATE_VERSION);
  app->require_subcommand(1);
  AddBenchCommand(app, chosen);
  AddCompletionCommand(app, chosen);
  AddConfigCommand(app, chosen);
  AddCtlCommand(app, chosen);
  AddDoctorCommand(app, chosen);
  AddEventsCommand(app, chosen);
  AddK8sCommand(app, chosen);
  AddRunCommand(app, program, chosen);
}

}  // namespace syncopate::services
