#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "services/config/run_config.h"
#include "tools/cli/command.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/judge.h"
#include "tools/doctor/machine.h"
#include "tools/run/child_process.h"

namespace syncopate::cli {
namespace {

constexpr char kDoctorExitCodes[] = "Exit codes: 0 nothing is bad; 1 something is; 2 the configuration is wrong.";

struct DoctorArguments {
  std::string path;  // "" is no file: defaults
  std::vector<std::string> overrides;
  bool json = false;
};

int Examine(const DoctorArguments& arguments) {
  absl::StatusOr<v1::RunConfig> config = config::ParseRunConfig("", "defaults").config;
  if (!arguments.path.empty()) config = config::LoadRunConfig(arguments.path, arguments.overrides);
  if (!config.ok()) {
    std::cerr << config.status().message() << "\n";
    return config::kConfigExitCode;
  }
  const std::vector<doctor::Finding> findings =
      doctor::Judge(doctor::LookAround(*config, run::OwnBinaryFolder()), *config);
  std::cout << (arguments.json ? doctor::ToJsonLines(findings) : doctor::ToText(findings));
  return doctor::AnyBad(findings) ? 1 : 0;
}

}  // namespace

void AddDoctorCommand(CLI::App* app, Command* chosen) {
  auto arguments = std::make_shared<DoctorArguments>();
  CLI::App* doctor = app->add_subcommand("doctor", "Look at what a run needs of this machine, and how to mend it");
  doctor->add_option("CONFIG", arguments->path, "YAML file; without it, the defaults")->type_name(kFileType);
  doctor->add_option("OVERRIDES", arguments->overrides, "section.key=value ...")->type_name(kSettingType);
  doctor->add_flag("--json", arguments->json, "One JSON object a line");
  doctor->footer(kDoctorExitCodes);
  doctor->callback([=] { *chosen = [=] { return Examine(*arguments); }; });
}

}  // namespace syncopate::cli
