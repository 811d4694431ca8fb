#pragma once

#include <string>

namespace syncopate::cli {

// JSON Schema (draft 2020-12) of a run configuration file, for editors and for checks elsewhere: every key with its
// type, range, choices, default and meaning. A file that this schema refuses is refused by ParseRunConfig too; the
// reverse does not hold, as combinations of keys are judged there alone. Ends in a newline.
std::string ConfigJsonSchema();

}  // namespace syncopate::cli
