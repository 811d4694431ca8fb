#pragma once

#include <string>
#include <vector>

#include "tools/doctor/finding.h"

namespace syncopate::doctor {

// Checks whether runs can begin with the Hugging Face model directory `folder`: shape, weights (every number), end
// tokens, tokenizer, chat template, and whether the template supports tools. With `python`, an interpreter with the
// package tokenizers, it also compares ids and texts of some thousand strings with that reference. Reads the folder,
// and writes to one under /tmp that it removes. Blocks for seconds, and seconds per gigabyte of weights. Never fails.
std::vector<Finding> ExamineModel(const std::string& folder, const std::string& python);

// The path of `name`: `name` itself if it is a path, else searched in `search_path`; "" if not found.
std::string FindProgram(const std::string& name, const std::string& search_path);

}  // namespace syncopate::doctor
