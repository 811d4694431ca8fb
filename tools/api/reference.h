#pragma once

#include <string>

#include "tools/api/descriptors.h"

namespace syncopate::api {

// Markdown from the .proto files and their comments: the set must have source information. Each text ends in a newline
// and is the same for the same set.

// Every service with its calls, then every message and enum once, by file. Messages of the configuration and of files
// on disk are left out.
std::string ApiReference(const ApiDescriptors& api);

// Every key of the run configuration, one table a section: key, default, allowed values, meaning.
std::string ConfigReference(const ApiDescriptors& api);

// `page` with everything after its line kGeneratedBelow replaced by `reference`. INVALID_ARGUMENT (reason NO_MARK) if
// the page has no such line.
absl::StatusOr<std::string> ReplaceGenerated(const std::string& page, const std::string& reference);
inline constexpr char kGeneratedBelow[] = "<!-- Generated from proto/ by scripts/docs.sh: edit the .proto files. -->";

}  // namespace syncopate::api
