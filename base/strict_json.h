#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate {

struct JsonLimits {
  int64_t max_bytes = 8 << 20;
  int max_depth = 4;  // the outermost value has depth 1
};

// Parses one JSON object from a source that is not trusted. INVALID_ARGUMENT (reason BAD_JSON) if the text is over its
// limits, is not well formed, is not an object, or gives a key twice. Size, depth and keys are checked before the
// value is built, so memory stays proportional to the text. Never throws.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text, const JsonLimits& limits);

// Parses as ParseStrictJson does, but objects keep the order of their keys.
absl::StatusOr<nlohmann::ordered_json> ParseStrictOrderedJson(absl::string_view text, const JsonLimits& limits);

// The value as text; `indent` < 0 means on one line. INVALID_ARGUMENT (reason BAD_JSON) if a string in it is not UTF-8.
absl::StatusOr<std::string> DumpJson(const nlohmann::json& value, int indent = -1);

}  // namespace syncopate
