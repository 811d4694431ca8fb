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

// Works in both shells on what the tables say. Finds what the word under the cursor, $1, may be after the words before
// it, $2 and on. Sets `candidates` (whole words), `files` ("", "file" or "folder") and `unfinished` (not empty: the
// candidates are to be typed on).
constexpr char kFindCandidates[] = R"(
_syncopate_candidates() {
  local current=$1 command='' position=0 value='' subcommands flags operands word
  shift
  for word; do
    if [ -n "$value" ]; then
      value=''
      continue
    fi
    case $word in
      --*=*) ;;
      -*) _syncopate_value "$command" "$word" ;;
      *)
        _syncopate_command "$command"
        case " $subcommands " in
          *" $word "*) command=${command:+$command }$word position=0 ;;
          *) position=$((position + 1)) ;;
        esac
        ;;
    esac
  done
  _syncopate_command "$command"
  if [ -z "$value" ]; then
    case $current in
      -*) candidates=$flags; return ;;
    esac
    if [ "$position" -eq 0 ]; then candidates=$subcommands; fi
    for word in $operands; do
      value=${word%...}
      if [ "$position" -eq 0 ] || [ "$value" != "$word" ]; then break; fi
      value='' position=$((position - 1))
    done
  fi
  case $value in
    file | folder) files=$value ;;
    'file|setting')
      files=file
      if [ -n "$current" ]; then _syncopate_settings "$current"; fi
      ;;
    setting) _syncopate_settings "$current" ;;
    one_of:*) value=${value#one_of:} candidates="$candidates ${value//,/ }" ;;
  esac
}

_syncopate_settings() {
  local key=${1%%=*} values='' word
  if [ "$key" = "$1" ]; then
    candidates="$candidates $_syncopate_keys" unfinished=yes
    return
  fi
  _syncopate_key_values "$key"
  for word in $values; do candidates="$candidates $key=$word"; done
}
)";

// Bash cuts words at COMP_WORDBREAKS, so the line is cut anew, and of replies only what follows the last break is
// given.
constexpr char kBashEntry[] = R"(
_syncopate() {
  local candidates='' files='' unfinished='' current='' line=${COMP_LINE:0:COMP_POINT} typed=() found=()
  read -ra typed <<<"$line"
  case $line in
    *[[:space:]]) ;;
    *) current=${typed[-1]} && unset 'typed[-1]' ;;
  esac
  _syncopate_candidates "$current" "${typed[@]:1}"
  case $files in
    file) mapfile -t found < <(compgen -f -- "$current") ;;
    folder) mapfile -t found < <(compgen -d -- "$current") ;;
  esac
  if [ -n "$files" ]; then compopt -o filenames 2>/dev/null; fi
  if [ -n "$unfinished" ]; then compopt -o nospace 2>/dev/null; fi
  mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$current")
  if [[ $current == *=* && $COMP_WORDBREAKS == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#"${current%=*}="}"); fi
  COMPREPLY+=("${found[@]}")
}
complete -F _syncopate PROGRAM
)";

// The tables are read as a Bourne shell would, the candidates are given as zsh wants them.
constexpr char kZshEntry[] = R"(
_syncopate_in_sh() {
  emulate -L sh
  _syncopate_candidates "$@"
}

_syncopate() {
  local candidates='' files='' unfinished=''
  _syncopate_in_sh "${words[CURRENT]}" "${(@)words[2,CURRENT-1]}"
  case $files in
    file) _files ;;
    folder) _files -/ ;;
  esac
  if [[ -n $unfinished ]]; then
    compadd -S '' -- ${=candidates}
  else
    compadd -- ${=candidates}
  fi
}

if [ "${funcstack[1]}" = _syncopate ]; then
  _syncopate "$@"
else
  compdef _syncopate PROGRAM
fi
)";

// The arms of the three `case` statements.
struct Tables {
  std::string commands;    // of a command: what may follow it
  std::string values;      // of a command and an option: what the option takes
  std::string key_values;  // of a key: the values that it may have, if they are few
};

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// What a word is, in the script's terms: "file", "folder", "setting", "file|setting", "one_of:a,b", or "text".
std::string KindOf(const CLI::Option& option) {
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

std::vector<std::string> NamesOf(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

// The kinds of a command's positionals in order; "..." after one that may come again and again.
std::string OperandsOf(const CLI::App& app) {
  std::vector<std::string> kinds;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const bool many = option->get_items_expected_max() > 1;
    const std::string kind = KindOf(*option);
    const bool file_comes_first = kind == "file|setting" && many;
    if (file_comes_first) kinds.push_back(kind);
    kinds.push_back((file_comes_first ? "setting" : kind) + (many ? "..." : ""));
  }
  return absl::StrJoin(kinds, " ");
}

// `path` is how `app` is called, without the program; `inherited` are options of the commands above that it takes too.
void Describe(const CLI::App& app, const std::string& path, std::vector<std::string> inherited, Tables* tables) {
  std::vector<std::string> commands, options;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : NamesOf(*option)) {
      options.push_back(name);
      if (IsFlag(*option)) continue;
      absl::StrAppend(&tables->values, "    ", Quoted(absl::StrCat(path, " ", name)),
                      ") value=", Quoted(KindOf(*option)), " ;;\n");
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
                  " flags=", Quoted(absl::StrJoin(options, " ")), " operands=", Quoted(OperandsOf(app)), " ;;\n");
}

std::string KeysOf(const config::ConfigSchema& schema, Tables* tables) {
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
  const std::string keys = KeysOf(schema, &tables);
  // An option that a command inherits is found at the command above.
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
