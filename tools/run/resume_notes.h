#pragma once

#include <string>
#include <vector>

#include "syncopate/v1/config.pb.h"

namespace syncopate::run {

// What somebody who resumes the run in `run_dir` may not expect of `config`, a sentence each: that it has no checkpoint
// to go on from, or has no step left to make. Reads names and the end of metrics.jsonl; nothing where no step was made.
std::vector<std::string> ResumeNotes(const v1::RunConfig& config, const std::string& run_dir);

}  // namespace syncopate::run
