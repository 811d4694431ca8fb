#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/sync/bench_run.h"
#include "bench/sync/sync_case.h"
#include "bench/sync/sync_result.h"

namespace syncopate::bench {

// Makes one process of a run fail in the middle of a sync: SIGKILL or SIGSTOP. The moment is found from outside: when
// the synchronizer says that an attempt is under way, and so much later as the stages before the wanted one took so
// far. Trainer and synchronizer are then restarted, as an operator's tools would do (a stopped synchronizer is
// continued); a replica is not, and no longer counts. Measures until every surviving replica has committed a version
// after that.
class FaultBench {
 public:
  // `run` is borrowed. `measured`: syncs of the case.
  FaultBench(const SyncCase& sync_case, const std::vector<SyncSample>& measured, BenchRun* run);

  // `replicas` take part in syncs; the one that falls is removed from them.
  absl::StatusOr<FaultOutcome> Run(std::vector<int32_t>* replicas);

 private:
  std::string Victim(const std::vector<int32_t>& replicas) const;
  bool kills() const { return sync_case_.fault.kind == BenchFault::Kind::kKill; }
  // Lets all processes end that do when the victim is lost.
  void ExpendGroup(const std::vector<int32_t>& replicas);
  // Waits until the synchronizer says that `replica` takes part in an attempt.
  absl::Status AwaitAttempt(int32_t replica);
  absl::Status MendSources(size_t from);
  absl::Status MendSynchronizer();

  const SyncCase& sync_case_;
  BenchRun& run_;
  absl::Duration delay_;  // from the beginning of an attempt to the middle of the stage
};

}  // namespace syncopate::bench
