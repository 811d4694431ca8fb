#pragma once

#include <vector>

#include "syncopate/v1/config.pb.h"
#include "tools/doctor/finding.h"

namespace syncopate::doctor {

// What a run of `config` begins with, looked at on this machine: the model directory (as ExamineModel, and whether the
// run's sequences fit it), the first rows of each file of data.files and data.eval_files as the trainer would write
// them down, and the program of environment.command. Nothing of a run on a built-in task with a model by keys. Reads
// all weights, so it blocks for seconds per gigabyte. Never fails.
std::vector<Finding> ExamineInputs(const v1::RunConfig& config);

}  // namespace syncopate::doctor
