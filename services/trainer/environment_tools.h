#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "syncopate/v1/config.pb.h"
#include "trainer/data/prompt_row.h"

namespace syncopate::trainerd {

inline constexpr absl::Duration kToolsWithin = absl::Minutes(2);

// Asks the first worker of environment.address which tools its environments have; none if the run does not play rows of text
// with a worker, or if the worker's socket cannot be on this host, because its folder is not there. Blocks until the worker
// answers, at most for `within`. `wait` blocks for that long, and says whether this process shall end. UNAVAILABLE (reason
// WORKER_AWAY) naming the address; FAILED_PRECONDITION (reason WRONG_DIGEST); INVALID_ARGUMENT (reason BAD_TOOLS) for
// tools that are no list of functions; CANCELLED if this process shall end.
absl::StatusOr<trainer::EnvironmentTools> AskForTools(const v1::RunConfig& config,
                                                      const std::function<bool(absl::Duration)>& wait,
                                                      absl::Duration within = kToolsWithin);

}  // namespace syncopate::trainerd
