#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::k8s {

// What the tree of manifests holds and this program cannot honour. `source` is the file.
inline absl::Status BadKustomization(const std::string& source, const std::string& what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_KUSTOMIZATION", absl::StrCat(source, ": ", what));
}

}  // namespace syncopate::k8s
