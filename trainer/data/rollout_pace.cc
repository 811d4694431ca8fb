#include "trainer/data/rollout_pace.h"

#include <algorithm>

#include "base/status.h"

namespace syncopate::trainer {

void RolloutPace::OnLeased(absl::Time now) {
  last_leased_ = ToOwn(now);
  open_.emplace(now, last_leased_);
}

void RolloutPace::SetAway(bool away, absl::Time now) {
  if (away == (away_since_ != absl::InfiniteFuture())) return;
  if (!away) stood_still_ += now - away_since_;
  away_since_ = away ? now : absl::InfiniteFuture();
}

void RolloutPace::OnEnded(absl::Time issued) {
  auto found = open_.find(issued);
  SYNCOPATE_CHECK(found != open_.end());
  open_.erase(found);
}

void RolloutPace::OnAccepted(absl::Duration time, std::optional<absl::Duration> patience, absl::Time now) {
  last_accepted_ = ToOwn(now);
  // A rollouter that was slow counts as quick after its first answer in time: it gets too few leases to outvote the
  // late
  // answers in the median.
  if (patience.has_value() && time <= *patience) {
    if (was_late_ || absl::Seconds(group_seconds_.median()) > *patience) group_seconds_.Clear();
    was_late_ = false;
  }
  group_seconds_.Add(absl::ToDoubleSeconds(time));
}

void RolloutPace::OnSuperseded(absl::Duration age, std::optional<absl::Duration> patience) {
  was_late_ |= patience.has_value() && age > *patience;
  const double seconds = absl::ToDoubleSeconds(age);
  if (seconds > group_seconds_.median()) group_seconds_.Add(seconds);
}

absl::Duration RolloutPace::Pace(absl::Duration usual, absl::Time now) const {
  const absl::Duration measured = group_seconds_.empty() ? usual : absl::Seconds(group_seconds_.median());
  return open_.empty() ? measured : std::max(measured, ToOwn(now) - OldestOpen());
}

bool RolloutPace::IsSlow(std::optional<absl::Duration> patience, absl::Time now) const {
  if (!patience.has_value()) return false;
  if (was_late_ || absl::Seconds(group_seconds_.median()) > *patience) return true;
  return !open_.empty() && ToOwn(now) - std::max(OldestOpen(), last_accepted_) > *patience;
}

}  // namespace syncopate::trainer
