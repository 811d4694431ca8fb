#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "trainer/data/flow_meter.h"

namespace syncopate::trainer {

// The speed at which one rollouter answers training groups, by which the ledger deals leases. Plain state, no lock.
// `patience` is FlowMeter::Patience everywhere: without one, no rollouter is slow. While a rollouter is away
// (RolloutSessions::SetAway) its time stands still.
class RolloutPace {
 public:
  void SetAway(bool away, absl::Time now);
  void OnLeased(absl::Time now);
  // The lease that was issued at this time has ended: answered, revoked or returned.
  void OnEnded(absl::Time issued);
  // A group of it was accepted, `time` after its lease was issued.
  void OnAccepted(absl::Duration time, std::optional<absl::Duration> patience, absl::Time now);
  // Another rollouter answered a group of it first: its own answer would have taken longer than `age`.
  void OnSuperseded(absl::Duration age, std::optional<absl::Duration> patience);

  int64_t open() const { return static_cast<int64_t>(open_.size()); }  // leases that it holds
  // The larger of its usual group time (`usual` before it is measured) and the age of its oldest open lease.
  absl::Duration Pace(absl::Duration usual, absl::Time now) const;
  // Its usual group takes longer than `patience`, or it holds leases and nothing of it was accepted for as long, or it
  // was late with the last one, and another answered that. One old lease beside others that are answered is a long
  // answer, and no sign of a slow rollouter.
  bool IsSlow(std::optional<absl::Duration> patience, absl::Time now) const;
  // True if a slow rollouter got no lease for kTrialPause times `patience`: one trial shows whether it is still slow.
  bool IsTrialDue(absl::Duration patience, absl::Time now) const {
    return ToOwn(now) - last_leased_ >= kTrialPause * patience;
  }

 private:
  // A trial costs the run one `patience` at most, then another rollouter is asked too: a tenth of the time.
  static constexpr int64_t kTrialPause = 10;

  // The time of a clock that stands still while it is away.
  absl::Time ToOwn(absl::Time now) const { return std::min(now, away_since_) - stood_still_; }
  // Since when it holds its oldest lease, by its own clock. Precondition: it holds one.
  absl::Time OldestOpen() const { return open_.begin()->second; }

  std::multimap<absl::Time, absl::Time> open_;  // when the leases that it holds were issued; values by its own clock
  RecentMedian group_seconds_{5};
  bool was_late_ = false;                            // superseded when it was late, and no answer in time since
  absl::Time last_accepted_ = absl::InfinitePast();  // by its own clock, as what follows
  absl::Time last_leased_ = absl::InfinitePast();
  absl::Time away_since_ = absl::InfiniteFuture();  // infinite: it is not
  absl::Duration stood_still_ = {};                 // before that
};

}  // namespace syncopate::trainer
