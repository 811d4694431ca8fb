#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/sync/sync_case.h"
#include "bench/sync/sync_result.h"

namespace syncopate::bench {

// The rates of the links between the case's processes without our protocol, in the pattern of its transfer: every
// receiver takes an equal part from each source, all at once. Keyed by the transport that they bound; only the
// transports that the case may use.
//
// With GPUs, syncopate-bench-ceiling of `binary_dir` measures on the devices that the case uses (copy engines for ipc,
// NCCL for nccl); for grpc the ceiling is one TCP connection over loopback for each receiver. Blocks, at most `limit`.
// Errors of BenchChild; UNAVAILABLE reason NO_CEILING with the program's log if it returns no measurement.
absl::StatusOr<std::map<std::string, Ceiling>> MeasureCeilings(const SyncCase& sync_case, int64_t weight_bytes,
                                                               int devices, const std::string& binary_dir,
                                                               const std::string& work_dir, absl::Duration limit);

// Bytes per second over each of `connections` TCP connections over loopback that transfer `bytes` each at the same
// time.
absl::StatusOr<double> LoopbackRate(int connections, int64_t bytes);

}  // namespace syncopate::bench
