#pragma once

#include <vector>

#include "syncopate/v1/config.pb.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/machine.h"

namespace syncopate::doctor {

// What the machine's facts mean for a run of `config` by `syncopate run`: a finding for everything that was looked at,
// good ones too, always in the same order. Pure.
std::vector<Finding> Judge(const Machine& machine, const v1::RunConfig& config);

}  // namespace syncopate::doctor
