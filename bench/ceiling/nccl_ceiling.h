#pragma once

#include "absl/status/statusor.h"
#include "bench/ceiling/gpu.h"

namespace syncopate::bench {

// Seconds that NCCL takes to bring every receiver its bytes: one group of sends and receives in which each receiver
// takes its part from each source. INTERNAL reason NCCL_ERROR, e.g. if two ranks share a device.
absl::StatusOr<double> GroupedNcclSeconds(const CeilingCase& ceiling_case);

// GroupedNcclSeconds for more replicas than sources: each source broadcasts its part of each slice to the receivers of
// that slice.
absl::StatusOr<double> BroadcastNcclSeconds(const CeilingCase& ceiling_case);

}  // namespace syncopate::bench
