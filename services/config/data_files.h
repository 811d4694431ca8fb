#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::config {

struct DataFile {
  std::string path;
  double weight = 1;  // how often one pass reads the file
};

// Parses data.files or data.eval_files: paths separated by commas, each followed by " * W" if it has a weight. An empty
// text names no files. INVALID_ARGUMENT (reason BAD_CONFIG); the message says what is expected. Pure.
absl::StatusOr<std::vector<DataFile>> ParseDataFiles(const std::string& list);

}  // namespace syncopate::config
