// The command line. It links no libtorch: everything heavy is in the daemons.
#include <CLI/CLI.hpp>

#include "services/cli/command.h"

namespace {

constexpr int kUsageExitCode = 2;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Asynchronous reinforcement learning for language models", "syncopate");
  app.set_version_flag("--version", SYNCOPATE_VERSION);
  app.require_subcommand(1);
  syncopate::services::Command chosen;
  syncopate::services::AddConfigCommand(&app, &chosen);
  syncopate::services::AddCtlCommand(&app, &chosen);
  syncopate::services::AddEventsCommand(&app, &chosen);
  syncopate::services::AddRunCommand(&app, argv[0], &chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageExitCode;
  }
  return chosen();
}
