#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace syncopate {

// A repository that was cloned without Git LFS contains small pointer texts in place of its large files.
//
// INVALID_ARGUMENT (reason LFS_POINTER) if `beginning`, the first bytes of `path` or all of them, is a pointer text.
// Pure.
absl::Status RefuseLfsPointer(absl::string_view beginning, const std::string& path);

}  // namespace syncopate
