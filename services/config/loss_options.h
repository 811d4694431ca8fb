#pragma once

#include "syncopate/v1/config.pb.h"
#include "trainer/loss/loss_options.h"

namespace syncopate::config {

// What a configuration asks of the loss, whether or not it makes sense: LossOptions::FindProblems(). Words that are no
// choice of their key, or no weights, keep their default.
loss::LossOptions LossOptionsOf(const v1::RunConfig& config);

}  // namespace syncopate::config
