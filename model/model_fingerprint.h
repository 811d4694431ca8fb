#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace syncopate::model {

// What tells one model directory from another without reading all of its weights, by the name of each file that is
// there: of config.json and the files of tokenizer and chat template the SHA-256 of everything; of each file of weights
// that of its size, its header, and 64 KiB at the beginning, the middle and the end of its tensors. Blocks for the disk.
// NOT_FOUND (reason NO_MODEL) without config.json; errors of ReadModelFile, FindWeightFiles and of opening a file.
// A directory whose weights are gone has the others.
absl::StatusOr<std::map<std::string, std::string>> FingerprintModel(const std::string& folder);

}  // namespace syncopate::model
