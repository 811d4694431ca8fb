#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncopate::config {

// Reads a duration of the configuration: one or more numbers with units, such as "250ms", "10s", "1h30m".
// INVALID_ARGUMENT (reason BAD_DURATION) unless it is finite, above zero and every number has a unit.
absl::StatusOr<absl::Duration> ParseDuration(const std::string& text);

// ParseDuration of a value that passed LoadRunConfig or ParseRunConfig: a malformed one is a bug. "" gives `if_empty`.
absl::Duration CheckedDuration(const std::string& text, absl::Duration if_empty = absl::InfiniteDuration());

}  // namespace syncopate::config
