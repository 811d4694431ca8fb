#include "trainer/loop/flow_sums.h"

#include <algorithm>
#include <utility>

namespace syncopate::trainer {

FlowSums AddLife(FlowSums before, double wall_seconds, const RunFigures& figures, const TrainingData::Status& data,
                 RolloutRoster roster) {
  FlowSums sums = std::move(before);
  sums.wall_seconds += wall_seconds;
  sums.figures.step_seconds += figures.step_seconds;
  sums.figures.wait_seconds += figures.wait_seconds;
  if (figures.best_exact.has_value()) {
    sums.figures.best_exact = std::max(sums.figures.best_exact.value_or(*figures.best_exact), *figures.best_exact);
  }
  if (figures.last_exact.has_value()) sums.figures.last_exact = figures.last_exact;
  sums.reissued += data.groups.reissued;
  sums.failed += data.groups.failed;
  sums.duplicate += data.groups.duplicate;
  sums.expired += data.groups.expired;
  for (const auto& [reason, count] : data.leases.invalid) sums.invalid[reason] += count;
  sums.roster = std::move(roster);
  return sums;
}

}  // namespace syncopate::trainer
