#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/console/text_table.h"
#include "base/log.h"
#include "services/config/difference.h"
#include "services/config/run_config.h"
#include "tools/cli/command.h"
#include "tools/cli/json_schema.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/inputs.h"

namespace syncopate::cli {
namespace {

// Exit codes of `config diff`, the same as diff's.
constexpr int kEqualExitCode = 0;
constexpr int kDifferentExitCode = 1;
// Exit code of `config check` for an unusable model directory or file.
constexpr int kBadInputsExitCode = 1;

struct ConfigArguments {
  std::string path;   // "": no file, only defaults
  std::string other;  // "": no file, only defaults
  std::vector<std::string> overrides;
  bool docs = false;
  bool keys = false;
};

absl::StatusOr<v1::RunConfig> Load(const std::string& path, const std::vector<std::string>& overrides) {
  if (!path.empty()) return config::LoadRunConfig(path, overrides);
  return config::ParseRunConfig("", "defaults").config;
}

int Refused(const absl::Status& status) {
  std::cerr << status.message() << "\n";
  return config::kConfigExitCode;
}

int Show(const ConfigArguments& arguments) {
  auto config = Load(arguments.path, arguments.overrides);
  if (!config.ok()) return Refused(config.status());
  std::cout << config::ToYaml(*config, arguments.docs ? config::YamlComments::kDocs : config::YamlComments::kNone);
  return 0;
}

int Check(const ConfigArguments& arguments) {
  auto config = Load(arguments.path, arguments.overrides);
  if (!config.ok()) return Refused(config.status());
  for (const std::string& doubt : config::FindDoubts(*config)) std::cout << "warning: " << doubt << "\n";
  if (!arguments.keys) {
    InitLogging({.role = "config", .minimum = Severity::kWarning}).IgnoreError();  // the findings report it
    const std::vector<doctor::Finding> findings = doctor::ExamineInputs(*config);
    if (!findings.empty()) std::cout << doctor::ToText(findings) << std::flush;
    if (doctor::AnyBad(findings)) {
      std::cerr << "the keys of " << arguments.path << " are right, and what they name is not\n";
      return kBadInputsExitCode;
    }
  }
  std::cout << arguments.path << " is right\n";
  return 0;
}

int Diff(const ConfigArguments& arguments) {
  auto after = Load(arguments.path, arguments.overrides);
  if (!after.ok()) return Refused(after.status());
  auto before = Load(arguments.other, {});
  if (!before.ok()) return Refused(before.status());
  const std::vector<config::ConfigDifference> differences = config::Differences(*before, *after);
  TextTable table({{"KEY"}, {arguments.other.empty() ? "DEFAULT" : arguments.other}, {arguments.path}});
  for (const config::ConfigDifference& difference : differences) {
    table.AddRow({difference.key, difference.before, difference.after});
  }
  if (!differences.empty()) std::cout << table.ToString();
  return differences.empty() ? kEqualExitCode : kDifferentExitCode;
}

int Schema() {
  std::cout << cli::ConfigJsonSchema();
  return 0;
}

}  // namespace

void AddConfigCommand(CLI::App* app, Command* chosen) {
  auto arguments = std::make_shared<ConfigArguments>();
  CLI::App* config = app->add_subcommand("config", "Show, check or compare run configurations");
  config->require_subcommand(1);

  CLI::App* show = config->add_subcommand("show", "Print the whole configuration, defaults included, as YAML");
  show->add_option("CONFIG", arguments->path, "YAML file; without it, the defaults")->type_name(kFileType);
  show->add_option("OVERRIDES", arguments->overrides, "section.key=value ...")->type_name(kSettingType);
  show->add_flag("--docs", arguments->docs, "Above each key, what it means and may be");
  show->callback([=] { *chosen = [=] { return Show(*arguments); }; });

  CLI::App* check = config->add_subcommand("check", "Report everything that is wrong with a configuration");
  check->add_option("CONFIG", arguments->path, "YAML file")->required()->type_name(kFileType);
  check->add_option("OVERRIDES", arguments->overrides, "section.key=value ...")->type_name(kSettingType);
  check->add_flag("--keys", arguments->keys, "Do not look at model and files: they are on another machine");
  check->footer("Exit codes: 0 right; 1 the model or a file that it names cannot be used; 2 a key is wrong.");
  check->callback([=] { *chosen = [=] { return Check(*arguments); }; });

  CLI::App* diff = config->add_subcommand("diff", "Print the keys in which a configuration differs from another");
  diff->add_option("CONFIG", arguments->path, "YAML file")->required()->type_name(kFileType);
  diff->add_option("OTHER", arguments->other, "YAML file; without it, the defaults")->type_name(kFileType);
  diff->footer("Exit codes: 0 equal; 1 different; 2 one of them cannot be read.");
  diff->callback([=] { *chosen = [=] { return Diff(*arguments); }; });

  CLI::App* schema = config->add_subcommand("schema", "Print the JSON Schema of a configuration, e.g. for an editor");
  schema->callback([=] { *chosen = [] { return Schema(); }; });
}

}  // namespace syncopate::cli
