#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::config {

struct DataFile {
  std::string path;
  double weight = 1;  // how often a pass goes over it
};

// What data.files and data.eval_files say: paths with commas between them, each followed by " * W" if it has a weight.
// Nothing is no files. INVALID_ARGUMENT (reason BAD_CONFIG) with what is expected as its message. Pure.
absl::StatusOr<std::vector<DataFile>> ParseDataFiles(const std::string& list);

}  // namespace syncopate::config
