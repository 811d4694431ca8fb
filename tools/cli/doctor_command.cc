#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "services/config/run_config.h"
#include "tools/cli/command.h"
#include "tools/doctor/card_memory.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/inputs.h"
#include "tools/doctor/judge.h"
#include "tools/doctor/machine.h"
#include "tools/doctor/model.h"
#include "tools/doctor/rank_memory.h"
#include "tools/run/child_process.h"

namespace syncopate::cli {
namespace {

constexpr char kDoctorExitCodes[] = "Exit codes: 0 nothing is bad; 1 something is; 2 the configuration is wrong.";

struct DoctorArguments {
  std::string path;  // "": no file, only defaults
  std::vector<std::string> overrides;
  std::string model;  // "": examine the machine
  bool reference = false;
  std::string python = "python3";
  bool json = false;
};

int Report(const std::vector<doctor::Finding>& findings, bool json) {
  std::cout << (json ? doctor::ToJsonLines(findings) : doctor::ToText(findings));
  return doctor::AnyBad(findings) ? 1 : 0;
}

int ExamineModel(const DoctorArguments& arguments) {
  std::string python;
  if (arguments.reference) {
    const char* search_path = std::getenv("PATH");
    python = doctor::FindProgram(arguments.python, search_path == nullptr ? "" : search_path);
    if (python.empty()) {
      std::cerr << arguments.python << " is not found; name another one with --python\n";
      return 1;
    }
  }
  InitLogging({.role = "doctor", .minimum = Severity::kWarning}).IgnoreError();  // the findings report it
  return Report(doctor::ExamineModel(arguments.model, python), arguments.json);
}

int Examine(const DoctorArguments& arguments) {
  if (!arguments.model.empty()) return ExamineModel(arguments);
  absl::StatusOr<v1::RunConfig> config = config::ParseRunConfig("", "defaults").config;
  if (!arguments.path.empty()) config = config::LoadRunConfig(arguments.path, arguments.overrides);
  if (!config.ok()) {
    std::cerr << config.status().message() << "\n";
    return config::kConfigExitCode;
  }
  InitLogging({.role = "doctor", .minimum = Severity::kWarning}).IgnoreError();  // the findings report it
  const doctor::Machine machine = doctor::InspectMachine(*config, run::OwnBinaryFolder());
  std::vector<doctor::Finding> findings = doctor::Judge(machine, *config);
  for (doctor::Finding& finding : doctor::ExamineRankMemory(machine, *config)) findings.push_back(std::move(finding));
  for (doctor::Finding& finding : doctor::ExamineCardMemory(machine, *config)) findings.push_back(std::move(finding));
  for (doctor::Finding& finding : doctor::ExamineInputs(*config)) findings.push_back(std::move(finding));
  return Report(findings, arguments.json);
}

}  // namespace

void AddDoctorCommand(CLI::App* app, Command* chosen) {
  auto arguments = std::make_shared<DoctorArguments>();
  CLI::App* doctor = app->add_subcommand("doctor", "Look at what a run needs of this machine, and how to mend it");
  doctor->add_option("CONFIG", arguments->path, "YAML file; without it, the defaults")->type_name(kFileType);
  doctor->add_option("OVERRIDES", arguments->overrides, "section.key=value ...")->type_name(kSettingType);
  CLI::Option* model = doctor->add_option("--model", arguments->model, "Look at this model directory instead");
  model->type_name(kFolderType);
  CLI::Option* reference = doctor->add_flag("--reference", arguments->reference,
                                            "Compare its tokenizer with a Python that has the package tokenizers");
  reference->needs(model);
  doctor->add_option("--python", arguments->python, "That Python")->capture_default_str()->needs(reference);
  doctor->add_flag("--json", arguments->json, "One JSON object a line");
  doctor->footer(kDoctorExitCodes);
  doctor->callback([=] { *chosen = [=] { return Examine(*arguments); }; });
}

}  // namespace syncopate::cli
