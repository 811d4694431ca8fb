#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/policy_version.h"
#include "synchronizer/loop/sync_tally.h"
#include "trainer/data/rollout_roster.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/flow_sums.h"

namespace syncopate::trainer {

// One rollouter process at the end of the run.
struct RollouterFigures {
  std::string replica_id;
  std::string incarnation;
  PolicyVersion version = {};
  RolloutRoster::Work work = {};
  bool answered = false;  // these are its figures now, not those it gave last
};

// What the other daemons know of the run at its end.
struct RunWitnesses {
  synchronizer::SyncTally syncs = {};             // of the whole run
  std::vector<RollouterFigures> rollouters = {};  // those that answered
};

// summary.json, of the whole run. What rollouters did that are gone, or do not answer, is taken from what they said
// last.
struct SummaryInput {
  std::string status;  // "completed", "stopped" or "failed"
  TrainingData::Status data = {};
  FlowSums flow = {};
};
nlohmann::json MakeSummary(const SummaryInput& input, const RunWitnesses& witnesses);

}  // namespace syncopate::trainer
