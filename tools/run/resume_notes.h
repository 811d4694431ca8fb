#pragma once

#include <string>
#include <vector>

#include "syncopate/v1/config.pb.h"

namespace syncopate::run {

// What a user who resumes the run in `run_dir` may not expect of `config`, one sentence each: that there is no
// checkpoint to continue from, or no step left to make. Reads file names and the end of metrics.jsonl; empty if no step
// was made.
std::vector<std::string> ResumeNotes(const v1::RunConfig& config, const std::string& run_dir);

}  // namespace syncopate::run
