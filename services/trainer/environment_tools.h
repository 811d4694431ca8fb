#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "syncopate/v1/config.pb.h"
#include "trainer/data/prompt_row.h"

namespace syncopate::trainerd {

inline constexpr absl::Duration kToolsWithin = absl::Minutes(2);

// Asks the workers of environment.address, one after the other, which tools their environments have; none if the run does
// not play rows of text with a worker, or if the worker's socket cannot be on this host, because its folder is not there.
// Blocks until one answers, at most for `within`. Without an answer, or with one that refuses this caller, it warns and gives
// none: an environment whose tools no prompt shows fails and says so, and all others need none. `wait` blocks for that long,
// and says whether this process shall end. FAILED_PRECONDITION (reason WRONG_DIGEST); INVALID_ARGUMENT (reason BAD_TOOLS) for
// tools that are no list of functions; CANCELLED if this process shall end.
absl::StatusOr<trainer::EnvironmentTools> AskForTools(const v1::RunConfig& config,
                                                      const std::function<bool(absl::Duration)>& wait,
                                                      absl::Duration within = kToolsWithin);

}  // namespace syncopate::trainerd
