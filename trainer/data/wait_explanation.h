#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/trajectory.h"
#include "trainer/data/explanation.h"

namespace syncopate::trainer {

// A snapshot of GroupLedger with every cause that a trainer's wait for a batch can have.
struct WaitView {
  // A lease and the rollouter that holds it.
  struct HeldLease {
    GroupId group;
    std::string rollouter;      // replica_id; "" if it has left
    std::string second = "";    // of the one that has a second attempt at it; "" without one
    bool under_way = true;      // false: answered, on its way to the log
    bool kept = false;          // no rollouter has it, and tokens of it are kept for the next one
    absl::Duration age = {};    // since it was issued
    absl::Duration still = {};  // since it came further
  };
  // Groups are ready, but this one must come first.
  struct Blocker {
    HeldLease lease;
    int64_t deadline = 0;  // the step that must train it
    int64_t step = 0;      // now
  };
  bool data_ended = false;
  std::optional<Blocker> blocker = {};
  PolicyVersion version;
  int64_t batch_groups = 0;
  int64_t queued_groups = 0;
  int64_t leased_groups = 0;
  int64_t rollouters = 0;  // that are connected
  int64_t ready = 0;       // of them, those that may receive leases now
  int64_t quarantined = 0;
  int64_t stalled = 0;
  bool supervised = false;               // no rollouter is waited for
  std::optional<GroupId> coming = {};    // the next prompt, while its row is being read
  absl::Status reading = {};             // why it cannot be
  std::optional<HeldLease> oldest = {};  // of all leases under way
  absl::Duration stall_limit = {};       // after it a lease that comes no further goes to another
};

// Fills in the explanation: what the trainer waits for, on which rollouter, and what would end the wait. Pure.
void ExplainWait(const WaitView& view, Explanation* explanation);

}  // namespace syncopate::trainer
