#pragma once

#include <string>
#include <vector>

#include "bench/sync/sync_case.h"
#include "model/model_config.h"

namespace syncopate::bench {

// A version is published with every second step, so that steps beside a publication and steps without one are made in
// turn, and each can be compared with the other.
inline constexpr int kStepsPerVersion = 2;

// Configuration overrides ("a.b=c") that all daemons of a benchmark's run share: random weights of `shape`, steps of a
// fixed number of answers whose update is always made, and nothing that would stand in the way of the next step
// (checkpoints, evaluations). Addresses and the run directory are not among them.
std::vector<std::string> BenchRunWords(const SyncCase& sync_case, const model::ModelConfig& shape);

}  // namespace syncopate::bench
