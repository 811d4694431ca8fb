#pragma once

#include "absl/status/statusor.h"
#include "bench/ceiling/gpu.h"

namespace syncopate::bench {

// Seconds in which copy engines bring every receiver its bytes: each takes its part from each source, in rounds in
// which every source serves a different receiver.
absl::StatusOr<double> DirectCopySeconds(const CeilingCase& ceiling_case);

// The same where there are more replicas than sources: a chain for each source; a replica copies a chunk from the one
// before it as soon as that has it.
absl::StatusOr<double> ChainCopySeconds(const CeilingCase& ceiling_case);

}  // namespace syncopate::bench
