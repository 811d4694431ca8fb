#pragma once

#include <vector>

#include "syncopate/v1/config.pb.h"
#include "tools/doctor/finding.h"

namespace syncopate::doctor {

// Checks the inputs of a run of `config` on this machine: the model directory (with ExamineModel, and whether the run's
// sequences fit it), the first rows of each file of data.files and data.eval_files, written as the trainer would write
// them, and the program of environment.command. No findings for a built-in task with a model that keys describe. Reads
// all weights, so it blocks for seconds per gigabyte. Never fails.
std::vector<Finding> ExamineInputs(const v1::RunConfig& config);

}  // namespace syncopate::doctor
