#include "tools/cli/completion.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tools/cli/command.h"

namespace syncopate::cli {
namespace {

// From tools/cli/completion_scripts: the code for both shells that uses the tables, and the entry point of each shell.
#include "tools/cli/completion_scripts.inc"

// The branches of the script's three `case` statements.
struct Tables {
  std::string commands;    // by command: what may follow it
  std::string values;      // by command and option: what the option takes
  std::string key_values;  // by key: its allowed values, if they are few
};

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// The kind of a word, in the script's notation: "file", "folder", "setting", "file|setting", "one_of:a,b", or "text".
std::string GetKind(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == kFileType) return "file";
  if (type == kFolderType) return "folder";
  if (type == kSettingType) return "setting";
  if (type == kFileOrSettingType) return "file|setting";
  const size_t begin = type.find('{'), end = type.rfind('}');  // CLI::IsMember writes {a,b}
  if (begin == std::string::npos || end == std::string::npos) return "text";
  return absl::StrCat("one_of:", type.substr(begin + 1, end - begin - 1));
}

bool IsFlag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

std::vector<std::string> GetNames(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

// The kinds of a command's positionals in order; "..." after one that may be repeated.
std::string MakeOperands(const CLI::App& app) {
  std::vector<std::string> kinds;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const bool many = option->get_items_expected_max() > 1;
    const std::string kind = GetKind(*option);
    const bool file_comes_first = kind == "file|setting" && many;
    if (file_comes_first) kinds.push_back(kind);
    kinds.push_back((file_comes_first ? "setting" : kind) + (many ? "..." : ""));
  }
  return absl::StrJoin(kinds, " ");
}

// `path` is the command's name after the program's; `inherited` are options of its parent commands that it accepts too.
void Describe(const CLI::App& app, const std::string& path, std::vector<std::string> inherited, Tables* tables) {
  std::vector<std::string> commands, options;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : GetNames(*option)) {
      options.push_back(name);
      if (IsFlag(*option)) continue;
      absl::StrAppend(&tables->values, "    ", Quoted(absl::StrCat(path, " ", name)),
                      ") value=", Quoted(GetKind(*option)), " ;;\n");
    }
  }
  for (const std::string& name : inherited) {
    if (std::find(options.begin(), options.end(), name) == options.end()) options.push_back(name);
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command->get_name());
    Describe(*command, path.empty() ? command->get_name() : absl::StrCat(path, " ", command->get_name()),
             command->get_fallthrough() ? options : std::vector<std::string>(), tables);
  }
  absl::StrAppend(&tables->commands, "    ", Quoted(path), ") subcommands=", Quoted(absl::StrJoin(commands, " ")),
                  " flags=", Quoted(absl::StrJoin(options, " ")), " operands=", Quoted(MakeOperands(app)), " ;;\n");
}

std::string GetKeys(const config::ConfigSchema& schema, Tables* tables) {
  std::vector<std::string> keys;
  for (const config::ConfigKey& key : schema.keys()) {
    keys.push_back(key.path + "=");
    std::string values = absl::StrJoin(key.option.choices(), " ");
    if (key.field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_BOOL) values = "true false";
    if (!values.empty()) {
      absl::StrAppend(&tables->key_values, "    ", Quoted(key.path), ") values=", Quoted(values), " ;;\n");
    }
  }
  return absl::StrJoin(keys, " ");
}

std::string Function(const std::string& name, const std::string& subject, const std::string& arms) {
  return absl::StrCat("\n", name, "() {\n  case ", subject, " in\n", arms, "  esac\n}\n");
}

}  // namespace

std::string CompletionScript(const CLI::App& app, const config::ConfigSchema& schema, CompletionShell shell) {
  const bool zsh = shell == CompletionShell::kZsh;
  const std::string name = zsh ? "zsh" : "bash";
  Tables tables;
  Describe(app, "", {}, &tables);
  const std::string keys = GetKeys(schema, &tables);
  // Values of an inherited option are looked up at the parent command.
  tables.values += "    *' '*' '*) _syncopate_value \"${1% *}\" \"$2\" ;;\n";
  std::string script = zsh ? absl::StrCat("#compdef ", app.get_name(), "\n") : "";
  absl::StrAppend(&script, "# Completion of ", app.get_name(), ", made by `", app.get_name(), " completion ", name,
                  "`.\n", "_syncopate_keys=", Quoted(keys), "\n");
  absl::StrAppend(&script, Function("_syncopate_command", "$1", tables.commands),
                  Function("_syncopate_value", "\"$1 $2\"", tables.values),
                  Function("_syncopate_key_values", "$1", tables.key_values), kFindCandidates);
  return script + absl::StrReplaceAll(zsh ? kZshEntry : kBashEntry, {{"PROGRAM", app.get_name()}});
}

}  // namespace syncopate::cli
