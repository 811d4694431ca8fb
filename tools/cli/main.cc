// The main program `syncopate`. It links no libtorch: only the daemons do.
#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "base/serving.h"
#include "tools/cli/command.h"

namespace {

constexpr int kUsageExitCode = 2;

}  // namespace

int main(int argc, char** argv) {
  syncopate::PrepareToServe();
  CLI::App app;
  syncopate::cli::Command chosen;
  syncopate::cli::AddCommands(&app, argv[0], &chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    const std::string unknown = syncopate::cli::UnknownCommand(app);
    if (unknown.empty()) return app.exit(error) == 0 ? 0 : kUsageExitCode;
    std::cerr << unknown << "\n";
    return kUsageExitCode;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageExitCode;
  }
  return chosen();
}
