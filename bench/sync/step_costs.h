#pragma once

#include <cstdint>
#include <string>

#include "bench/sync/sync_result.h"

namespace syncopate::bench {

// What publishing versions cost the trainer's steps, from the lines of its metrics.jsonl. `published_every`: steps to a
// version. Steps up to `after_step` and lines that are no steps are left out.
StepCosts ReadStepCosts(const std::string& lines, int published_every, int64_t after_step);

}  // namespace syncopate::bench
