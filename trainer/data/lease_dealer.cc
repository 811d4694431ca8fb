#include "trainer/data/lease_dealer.h"

#include <tuple>

namespace syncopate::trainer {

RolloutSession* LeaseDealer::Choose(const std::vector<Candidate>& candidates) const {
  bool healthy_are_there = false, healthy_are_at_work = false;
  for (const Candidate& one : candidates) {
    if (one.session->pace.IsSlow(patience, now)) continue;
    healthy_are_there = true;
    // A rollouter without room and without leases is paused or drained: waiting for it could last for ever.
    healthy_are_at_work |= one.can_take || one.session->pace.open() > 0;
  }
  auto rank = [&](const Candidate& one, bool trial) {
    const int64_t open = one.session->pace.open();
    const absl::Duration cost = one.session->pace.Pace(usual, now) * (open + 1);
    return std::tuple(one.has_failed, trial ? absl::ZeroDuration() : cost, open);
  };
  RolloutSession* best = nullptr;
  decltype(rank(candidates.front(), false)) least;
  for (const Candidate& one : candidates) {
    if (!one.can_take) continue;
    const RolloutPace& pace = one.session->pace;
    const bool waits = healthy_are_there && pace.IsSlow(patience, now);
    const bool trial = waits && pace.open() == 0 && pace.IsTrialDue(*patience, now);
    if (waits && !trial && (healthy_are_at_work || pace.open() > 0)) continue;
    const auto its = rank(one, trial);
    if (best == nullptr || its < least) best = one.session, least = its;
  }
  return best;
}

}  // namespace syncopate::trainer
