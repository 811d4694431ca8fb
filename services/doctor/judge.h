#pragma once

#include <vector>

#include "services/doctor/finding.h"
#include "services/doctor/machine.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::services {

// What the machine's facts mean for a run of `config` by `syncopate run`: a finding for everything that was looked at,
// good ones too, always in the same order. Pure.
std::vector<Finding> Judge(const Machine& machine, const v1::RunConfig& config);

}  // namespace syncopate::services
