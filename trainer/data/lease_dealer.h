#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "trainer/data/rollout_sessions.h"

namespace syncopate::trainer {

// Chooses the rollouter that gets a lease, among those that serve a version whose tokens can be trained and that are
// neither quarantined nor stalled. Pure.
//
// Each one's cost is its pace times the leases that it would hold; the least is next, and among equals the one that
// holds fewest. So equal rollouters share evenly, and a rollouter of half the speed gets half as many. While one that
// is not slow (RolloutPace::IsSlow) is there, a slow one holds one group at a time, and gets even that only when the
// others could take none for a reason other than being busy, or when a trial is due: a group that waits for a slow
// rollouter delays every batch that must come after it.
struct LeaseDealer {
  struct Candidate {
    RolloutSession* session = nullptr;
    bool has_failed = false;  // at this prompt: it gets the prompt only if no other can
    bool can_take = false;    // has room, and may have this group
  };

  std::optional<absl::Duration> patience = {};  // FlowMeter::Patience
  absl::Duration usual = {};                    // the group time of a rollouter that is not measured yet
  absl::Time now = {};

  // Returns null if no rollouter can take it now, or waiting for a rollouter that is not slow is better.
  RolloutSession* Choose(const std::vector<Candidate>& candidates) const;
};

}  // namespace syncopate::trainer
