#pragma once

#include <string>

namespace syncopate::cli {

// JSON Schema (draft 2020-12) of a run configuration file, for editors and other checkers: every key with its type,
// range, choices, default and meaning. ParseRunConfig refuses every file that this schema refuses; the reverse does not
// hold, because only ParseRunConfig checks combinations of keys. Ends in a newline.
std::string ConfigJsonSchema();

}  // namespace syncopate::cli
