#pragma once

#include <optional>
#include <string>
#include <vector>

#include "services/config/problem.h"

namespace syncopate::config {

// The value of `where` for overrides.
inline constexpr char kCommandLine[] = "command line";

// One key with the text of its value, before either is checked.
struct Setting {
  enum class Kind { kPlain, kQuoted, kNull, kList, kNotScalar };
  std::string where;  // "reverse.yaml:12" or "command line"
  std::string path;   // "train.learning_rate", or "train" for a section that is no map
  std::string value;  // as written; kList: its items, joined by ", "; kNotScalar: "a list" or "a map"
  Kind kind = Kind::kPlain;
  std::vector<Setting> inner = {};  // for a map where a value should be: the settings in it, at any depth
};

struct ParsedSettings {
  std::vector<Setting> settings;  // in the order of the text, duplicates included
  std::vector<ConfigProblem> problems;
};

// Flattens a YAML text of sections of scalars. `source` names it in problems. An empty text has no settings.
ParsedSettings ParseYamlSettings(const std::string& text, const std::string& source);

// Turns the flow list "[a, 'b']" into "a, b", the text that ParseYamlSettings gives for a list; nullopt if the text is
// no list of scalars.
std::optional<std::string> JoinFlowList(const std::string& text);

// Reads "section.key=value" overrides. The value is used as written: no YAML quotes.
ParsedSettings ParseOverrides(const std::vector<std::string>& overrides);

}  // namespace syncopate::config
