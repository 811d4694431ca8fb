#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "bench/sync/sync_case.h"
#include "bench/sync/sync_result.h"

namespace syncopate::bench {

struct SyncBenchOptions {
  std::string binary_dir;  // of the programs to start
  // Called with a sentence on what happens next, for the user. May be null.
  std::function<void(const std::string&)> progress = nullptr;
};

// Measures one case with the daemons themselves, as processes of this machine with random weights: warm-up, the
// measured syncs, then a late joiner and a fault if the case asks for them. Blocks for at most sync_case.limit and a
// few seconds; call it from a thread that outlives it, with SIGPIPE ignored. No process is left when it returns, nor
// when the calling process is killed. Errors of SyncCase::Validate, BenchRun, layouts and plan.
absl::StatusOr<SyncResult> RunSyncBench(const SyncCase& sync_case, const SyncBenchOptions& options);

// The plan of the case as text (SyncPlan::ToString). Starts nothing.
absl::StatusOr<std::string> DescribePlan(const SyncCase& sync_case);

}  // namespace syncopate::bench
