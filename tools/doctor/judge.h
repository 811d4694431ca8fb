#pragma once

#include <vector>

#include "syncopate/v1/config.pb.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/machine.h"

namespace syncopate::doctor {

// Judges the machine's facts for a run of `config` by `syncopate run`: one finding for each check, good ones too,
// always in the same order. Pure.
std::vector<Finding> Judge(const Machine& machine, const v1::RunConfig& config);

}  // namespace syncopate::doctor
