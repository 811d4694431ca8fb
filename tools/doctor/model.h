#pragma once

#include <string>
#include <vector>

#include "tools/doctor/finding.h"

namespace syncopate::doctor {

// Whether the Hugging Face model directory `folder` is one that runs can begin with: shape, weights (every number), end
// of answers, tokenizer, chat template, and whether that takes tools. With `python`, a program with the package tokenizers, also
// whether ids and texts of some thousand strings are the reference's. Reads the folder and writes to one under /tmp
// that it removes. Blocks for seconds, and seconds per gigabyte of weights. Never fails.
std::vector<Finding> ExamineModel(const std::string& folder, const std::string& python);

// Where `name` is, if it is no path, by PATH; "" if nowhere.
std::string FindProgram(const std::string& name, const std::string& search_path);

}  // namespace syncopate::doctor
