#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "services/cli/command.h"
#include "services/config/run_config.h"

namespace syncopate::services {
namespace {

struct ConfigArguments {
  std::string path;  // "" is no file: defaults
  std::vector<std::string> overrides;
  bool docs = false;
};

absl::StatusOr<v1::RunConfig> Load(const ConfigArguments& arguments) {
  if (!arguments.path.empty()) return LoadRunConfig(arguments.path, arguments.overrides);
  return ParseRunConfig("", "defaults").config;
}

int Refused(const absl::Status& status) {
  std::cerr << status.message() << "\n";
  return kConfigExitCode;
}

int Show(const ConfigArguments& arguments) {
  auto config = Load(arguments);
  if (!config.ok()) return Refused(config.status());
  std::cout << ToYaml(*config, arguments.docs ? YamlComments::kDocs : YamlComments::kNone);
  return 0;
}

int Check(const ConfigArguments& arguments) {
  auto config = Load(arguments);
  if (!config.ok()) return Refused(config.status());
  std::cout << arguments.path << " is right\n";
  return 0;
}

}  // namespace

void AddConfigCommand(CLI::App* app, Command* chosen) {
  auto arguments = std::make_shared<ConfigArguments>();
  CLI::App* config = app->add_subcommand("config", "Show or check a run configuration");
  config->require_subcommand(1);

  CLI::App* show = config->add_subcommand("show", "Print the whole configuration, defaults included, as YAML");
  show->add_option("CONFIG", arguments->path, "YAML file; without it, the defaults")->type_name(kFileType);
  show->add_option("OVERRIDES", arguments->overrides, "section.key=value ...")->type_name(kSettingType);
  show->add_flag("--docs", arguments->docs, "Above each key, what it means and may be");
  show->callback([=] { *chosen = [=] { return Show(*arguments); }; });

  CLI::App* check = config->add_subcommand("check", "Report everything that is wrong with a configuration");
  check->add_option("CONFIG", arguments->path, "YAML file")->required()->type_name(kFileType);
  check->add_option("OVERRIDES", arguments->overrides, "section.key=value ...")->type_name(kSettingType);
  check->callback([=] { *chosen = [=] { return Check(*arguments); }; });
}

}  // namespace syncopate::services
