#pragma once

#include <string>

#include "tools/api/descriptors.h"

namespace syncopate::api {

// Markdown of what the .proto files say, comments included: the set must have source information. Each ends in a
// newline and is the same for the same set.

// Every service with its calls, then every message and enum, each once, by file. Messages of the configuration and of
// files on disk are left out.
std::string ApiReference(const ApiDescriptors& api);

// Every key of the run configuration, a table a section: key, default, what it may be, what it means.
std::string ConfigReference(const ApiDescriptors& api);

// `page` with everything after its line kGeneratedBelow replaced by `reference`. INVALID_ARGUMENT (reason NO_MARK) if
// the page has no such line.
absl::StatusOr<std::string> ReplaceGenerated(const std::string& page, const std::string& reference);
inline constexpr char kGeneratedBelow[] = "<!-- Generated from proto/ by scripts/docs.sh: edit the .proto files. -->";

}  // namespace syncopate::api
