#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/config/run_config.h"
#include "tools/cli/command.h"
#include "tools/cli/run_here.h"
#include "tools/doctor/looks.h"
#include "tools/run/child_process.h"
#include "tools/run/launch.h"
#include "tools/run/local_run.h"

namespace syncopate::cli {
namespace {

constexpr char kRunExitCodes[] =
    "Exit codes: 0 the run is complete; 1 it failed; 2 the configuration or the run directory is refused and nothing "
    "was started; 4 a rank of the trainer was lost, or the trainer found that a fresh start may do better (--resume); "
    "130 "
    "it was interrupted. Ctrl-C drains and stops within run.grace, a second one stops at once.";

struct RunArguments {
  std::vector<std::string> words;  // CONFIG and overrides
  std::string steps;
  std::string duration;
  std::string resume;  // run directory
  std::string web;     // port or address for the run's page
  bool with_web = false;
  bool quiet = false;
  bool json = false;
  bool accept_reward_change = false;
};

// The hardware that daemons of this build would find, without linking libtorch.
model::Hardware LookAtHardware() {
  if (!SYNCOPATE_WITH_CUDA) return {};
  return {.built_with_cuda = true, .gpus = static_cast<int>(doctor::InspectGpus().gpus.size())};
}

int Refuse(const std::string& message) {
  std::cerr << message << "\n";
  return config::kConfigExitCode;
}

int Run(const RunArguments& arguments, const std::string& program) {
  std::string config_path;
  std::vector<std::string> overrides = arguments.words;
  if (!overrides.empty() && !absl::StrContains(overrides.front(), "=")) {
    config_path = overrides.front();
    overrides.erase(overrides.begin());
  }
  if (!arguments.resume.empty()) {
    if (config_path.empty()) config_path = run::ResolvedConfigPath(arguments.resume);
    overrides.push_back(absl::StrCat("run.dir=", arguments.resume));
    overrides.push_back("run.resume=true");
  }
  if (config_path.empty()) return Refuse("CONFIG is missing: syncopate run CONFIG, or syncopate run --resume RUN_DIR");
  if (!arguments.steps.empty()) overrides.push_back(absl::StrCat("run.steps=", arguments.steps));
  if (!arguments.duration.empty()) overrides.push_back(absl::StrCat("run.duration=", arguments.duration));
  return RunOnThisMachine(
      {.config = config_path,
       .overrides = std::move(overrides),
       .quiet = arguments.quiet,
       .json = arguments.json,
       .accept_reward_change = arguments.accept_reward_change,
       .web = arguments.with_web ? std::optional(arguments.web.empty() ? "0" : arguments.web) : std::nullopt},
      program);
}

}  // namespace

int RunOnThisMachine(const RunHere& here, const std::string& program) {
  auto config = config::LoadRunConfig(here.config, here.overrides, [] { return int64_t{LookAtHardware().gpus}; });
  if (!config.ok()) return Refuse(std::string(config.status().message()));
  run::RunOutput output = ::isatty(STDOUT_FILENO) == 1 ? run::RunOutput::kLive : run::RunOutput::kPlain;
  if (here.quiet) output = run::RunOutput::kQuiet;
  if (here.json) output = run::RunOutput::kJson;
  return run::RunLocally({*std::move(config), program, run::OwnBinaryFolder(), output, here.accept_reward_change,
                          here.web, &std::cout, &std::cerr, LookAtHardware});
}

void AddRunCommand(CLI::App* app, const std::string& program, Command* chosen) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* run = app->add_subcommand("run", "Train on this machine: start every daemon, watch it, stop it");
  run->footer(kRunExitCodes);
  run->add_option("CONFIG", arguments->words, "YAML file, then section.key=value ...")->type_name(kFileOrSettingType);
  run->add_option("--steps", arguments->steps, "The same as run.steps=N");
  run->add_option("--duration", arguments->duration, "The same as run.duration=TIME, e.g. 30s");
  CLI::Option* resume =
      run->add_option("--resume", arguments->resume, "Continue the run of this run directory, with its own CONFIG")
          ->type_name(kFolderType);
  run->add_flag("--accept-reward-change", arguments->accept_reward_change,
                "Continue it though its reward has changed: section reward, or the code of the worker")
      ->needs(resume);
  CLI::Option* quiet =
      run->add_flag("--quiet", arguments->quiet, "Print the end only, and the page's address with --web");
  run->add_flag("--json", arguments->json, "Print one JSON object a line")->excludes(quiet);
  CLI::Option* web = run->add_option("--web", arguments->web,
                                     "Serve the page of the run on this machine, on this port; on any free one without")
                         ->expected(0, 1)
                         ->type_name("[PORT]");
  run->callback([=] {
    arguments->with_web = web->count() > 0;
    *chosen = [=] { return Run(*arguments, program); };
  });
}

}  // namespace syncopate::cli
