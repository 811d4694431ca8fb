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
  int64_t leased_groups = 0;
  int64_t credits = 0;
  int64_t accepted_groups = 0;
  int64_t invalid_groups = 0;
  int64_t returned_groups = 0;    // leases that it handed back
  int64_t stalled_groups = 0;     // taken from it because they came no further; it gets none while this is above 0
  double quarantine_seconds = 0;  // it gets no leases for so long; 0: it does
  std::string last_fault;         // why its last answers were of no use; "" if the last one was
  std::string no_rewards;         // why it can have no rewards, and so asks for no work; "": it can
};

// What a run's data tell people and other processes.
struct DataStatus {
  PolicyVersion version;
  Explanation explanation;       // waiting_for may be "evaluation", "rewards" or "disk" too
  GroupLedger::Counters groups;  // of this life, as `leases` and `staleness` are
  TrainingSums sums;             // of the whole run
  LeaseDesk::Counts leases;
  RewardFailures::Figures rewards;
  absl::Status reward_verdict;  // not OK: the run must end
  int64_t queued_groups = 0;
  int64_t leased_groups = 0;
  int64_t staleness_bound = 0;
  StalenessTally staleness;  // of all batches of this life
  std::vector<RolloutView> rollouters;
};

// What a status needs beside the desk. Borrows `disk`.
struct DataStatusInputs {
  absl::Time now;
  TrainingSums sums;
  int64_t max_staleness = 0;
  int64_t samples = 0;  // of a group
  const DiskTrouble* disk = nullptr;
};

// Pure. The owner of `desk` holds its lock.
DataStatus MakeDataStatus(const LeaseDesk& desk, const DataStatusInputs& inputs);

}  // namespace syncopate::trainer
