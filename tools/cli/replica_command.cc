#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/daemon/command_line.h"
#include "services/config/run_config.h"
#include "tools/cli/command.h"
#include "tools/run/child_process.h"
#include "tools/run/replica.h"

namespace syncopate::cli {
namespace {

constexpr char kReplicaFooter[] =
    "For supervisors that start a rollouter of several ranks as one process, such as a container, and start it again "
    "when it ends; `syncopate run` starts ranks itself. Rank 0 follows a signal to stop; a second signal stops all "
    "ranks at once. "
    "The exit code is that of syncopate-rollouter: 4 if a rank was lost.";

struct ReplicaArguments {
  std::vector<std::string> words;  // CONFIG and overrides
  bool exit_on_completion = false;
  std::string interrupted_code;
  bool insecure_bind = false;

  // The arguments in syncopate-rollouter's form.
  std::vector<std::string> Words() const {
    std::vector<std::string> all = words;
    if (exit_on_completion) all.emplace_back("--exit-on-completion");
    if (!interrupted_code.empty()) all.push_back(absl::StrCat("--interrupted-code=", interrupted_code));
    if (insecure_bind) all.emplace_back("--insecure-bind");
    return all;
  }
};

int RunReplicaCommand(const ReplicaArguments& arguments) {
  auto refuse = [](const absl::Status& status) {
    std::cerr << status.message() << "\n";
    return config::kConfigExitCode;
  };
  const auto line = daemon::ParseCommandLine(arguments.Words());
  if (!line.ok()) return refuse(line.status());
  auto config = config::LoadRunConfig(line->config, line->overrides);
  if (!config.ok()) return refuse(config.status());
  return run::RunReplica({.config = *std::move(config),
                          .words = arguments.Words(),
                          .binary_dir = run::OwnBinaryFolder(),
                          .err = &std::cerr});
}

}  // namespace

void AddReplicaCommand(CLI::App* app, Command* chosen) {
  auto arguments = std::make_shared<ReplicaArguments>();
  CLI::App* replica =
      app->add_subcommand("replica",
                          "Run one rollouter of rollout.tensor_parallel ranks: a process each, all of which end "
                          "together");
  replica->footer(kReplicaFooter);
  replica->add_option("CONFIG", arguments->words, "YAML file, then section.key=value ...")
      ->type_name(kFileOrSettingType)
      ->required();
  replica->add_flag("--exit-on-completion", arguments->exit_on_completion, "End with code 0 when the run is complete");
  replica->add_option("--interrupted-code", arguments->interrupted_code,
                      "End with this code, not 0, when a signal has stopped it in order");
  replica->add_flag("--insecure-bind", arguments->insecure_bind, "The same as run.insecure_bind=true");
  replica->callback([=] { *chosen = [=] { return RunReplicaCommand(*arguments); }; });
}

}  // namespace syncopate::cli
