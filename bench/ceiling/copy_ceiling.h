#pragma once

#include "absl/status/statusor.h"
#include "bench/ceiling/gpu.h"

namespace syncopate::bench {

// Seconds that copy engines take to bring every receiver its bytes: each takes its part from each source, in rounds in
// which every source serves a different receiver.
absl::StatusOr<double> DirectCopySeconds(const CeilingCase& ceiling_case);

// DirectCopySeconds for more replicas than sources, with one chain a source: a replica copies each chunk from its
// predecessor as soon as that has it.
absl::StatusOr<double> ChainCopySeconds(const CeilingCase& ceiling_case);

}  // namespace syncopate::bench
