#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace syncopate::model {

// A fingerprint of a model directory that does not read all weights: the name and a SHA-256 of each file that is there.
// The SHA-256 of config.json and the files of tokenizer and chat template is that of the whole file. The SHA-256 of a
// file of weights covers its size, its header, and 64 KiB at the beginning, the middle and the end of its tensors.
// Files of weights that are missing are left out. Blocks for the disk. NOT_FOUND (reason NO_MODEL) without config.json;
// errors of ReadModelFile, FindWeightFiles and of opening a file.
absl::StatusOr<std::map<std::string, std::string>> FingerprintModel(const std::string& folder);

}  // namespace syncopate::model
