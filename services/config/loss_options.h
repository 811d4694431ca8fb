#pragma once

#include "syncopate/v1/config.pb.h"
#include "trainer/loss/loss_options.h"

namespace syncopate::config {

// The loss options that a configuration asks for, whether or not they make sense: LossOptions::FindProblems() judges
// them. A word that is no choice of its key, or a malformed weight, leaves the default.
loss::LossOptions MakeLossOptions(const v1::RunConfig& config);

}  // namespace syncopate::config
