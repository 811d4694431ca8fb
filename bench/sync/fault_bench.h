#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "bench/sync/bench_cast.h"
#include "bench/sync/sync_case.h"
#include "bench/sync/sync_result.h"
#include "bench/sync/sync_rounds.h"

namespace syncopate::bench {

// Makes one process fail in the middle of a sync: SIGKILL or SIGSTOP, at the stage that the case names. Sources and
// synchronizer are then restarted, as an operator's tools would do (a stopped synchronizer is continued); a receiver is
// not, and no longer counts. Measures until every survivor serves the newest version, then syncs once more and asks
// whether all devices still compute.
class FaultBench {
 public:
  // All are borrowed. `transfer_seconds`: the duration of a transfer, so that the signal comes in the middle of one.
  FaultBench(const SyncCase& sync_case, double transfer_seconds, BenchCast* cast, SyncRounds* rounds)
      : sync_case_(sync_case), transfer_seconds_(transfer_seconds), cast_(*cast), rounds_(*rounds) {}

  absl::StatusOr<FaultOutcome> Run();

 private:
  std::string Victim() const;
  bool killed() const { return sync_case_.fault.kind == BenchFault::Kind::kKill; }
  // Whether the victim takes part in the stage, and so signals itself. The synchronizer is no member, and sources take
  // no part in installs: this process signals those when a receiver has reached the stage.
  bool FallsByItself() const;
  absl::Status Arm(const std::string& victim);
  // Waits until `victim` is signalled, signals it if it does not do so itself, and returns the time, by the machine's
  // clock.
  absl::StatusOr<double> AwaitBlow(const std::string& victim);
  // Restarts what must be restarted and returns the time when it was ready, by the machine's clock; nullopt if nothing
  // must be.
  absl::StatusOr<std::optional<double>> Mend(const std::string& victim);
  absl::Status RestartSources(const std::string& victim);
  absl::StatusOr<bool> AllHealthy();

  const SyncCase& sync_case_;
  const double transfer_seconds_;
  BenchCast& cast_;
  SyncRounds& rounds_;
};

}  // namespace syncopate::bench
