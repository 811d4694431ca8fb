#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/policy_version.h"
#include "trainer/data/disk_trouble.h"
#include "trainer/data/explanation.h"
#include "trainer/data/group_ledger.h"
#include "trainer/data/lease_desk.h"
#include "trainer/data/reward_failures.h"
#include "trainer/data/staleness_tally.h"
#include "trainer/data/training_sums.h"

namespace syncopate::trainer {

struct RolloutView {
  std::string replica_id;
  std::string incarnation;
  PolicyVersion serving;
  int64_t publish_lag_steps = 0;  // the trainer's step less that of `serving`; all steps if it serves no version
  int64_t leased_groups = 0;
  int64_t credits = 0;
  int64_t accepted_groups = 0;
  int64_t invalid_groups = 0;
  int64_t returned_groups = 0;  // leases that this rollouter handed back without an answer
  int64_t stalled_groups = 0;   // leases revoked from it because they made no progress; while above 0 it gets no leases
  double quarantine_seconds = 0;  // remaining seconds without leases; 0: not quarantined
  std::string last_fault;         // why its last answers were not usable; "" if the last answer was valid
  std::string no_rewards;         // why its rewards do not work, so that it asks for no work; "": they work
};

// The state of a run's data as the status page and other processes see it.
struct DataStatus {
  PolicyVersion version;
  Explanation explanation;       // waiting_for may also be "evaluation", "rewards" or "disk"
  GroupLedger::Counters groups;  // counts of this incarnation, like `leases` and `staleness`
  TrainingSums sums;             // totals of the whole run
  LeaseDesk::Counts leases;
  RewardFailures::Figures rewards;
  absl::Status reward_verdict;  // an error: the run must end
  int64_t queued_groups = 0;
  int64_t leased_groups = 0;
  int64_t unfinished_bytes = 0;    // of unfinished answers that are kept
  double answered_time_ratio = 1;  // FlowMeter::answered_time_ratio()
  double kept_length_ratio = 1;    // FlowMeter::kept_length_ratio()
  int64_t staleness_bound = 0;
  StalenessTally staleness;  // tokens of all batches of this incarnation
  std::vector<RolloutView> rollouters;
};

// The inputs of MakeDataStatus besides the desk. Borrows `disk`.
struct DataStatusInputs {
  absl::Time now;
  TrainingSums sums;
  int64_t max_staleness = 0;
  int64_t samples = 0;       // rollouts per group
  int64_t judge_tokens = 0;  // as TrainingData::Options
  const DiskTrouble* disk = nullptr;
};

// Pure function of its arguments. The caller holds the lock that guards `desk`.
DataStatus MakeDataStatus(const LeaseDesk& desk, const DataStatusInputs& inputs);

}  // namespace syncopate::trainer
