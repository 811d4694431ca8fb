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

// Figures of the other daemons about the run at its end.
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
  std::string best_checkpoint = {};  // its name, "" if there is none
  double best_checkpoint_reward = 0;
};
// Whether `text` is a summary of this very step, and says how the run ended unless that has changed for the better: a
// summary that says "failed" of a run that has since been completed is written anew.
bool IsSummaryFor(const std::string& text, int64_t step, const std::string& status);
nlohmann::json MakeSummary(const SummaryInput& input, const RunWitnesses& witnesses);

}  // namespace syncopate::trainer
