#pragma once

#include <string>

#include "base/status.h"

namespace syncopate::auth {

// What section `security` of a configuration, or a file that it names, is refused with.
inline absl::Status BadSecurity(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_SECURITY", message);
}

}  // namespace syncopate::auth
