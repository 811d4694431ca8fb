#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "trainer/data/explanation.h"

namespace syncopate::trainer {

// The last `window` values of a quantity.
class RecentValues {
 public:
  explicit RecentValues(size_t window) : window_(window) {}
  void Add(double value);
  double Mean() const;  // 0 when empty
  double Max() const;   // 0 when empty

 private:
  size_t window_;
  std::deque<double> values_;
  double sum_ = 0;
};

// Live measurements for the sizing law: with T the step interval and E[D], D_max the mean and the longest time of a
// group, target_staleness of about E[D]/T keeps the trainer busy and max_staleness of at least D_max/T never stalls it.
class FlowMeter {
 public:
  void OnGroup(absl::Duration time) { groups_.Add(absl::ToDoubleSeconds(time)); }
  void OnStepDone(absl::Time now);

  double mean_group_seconds() const { return groups_.Mean(); }
  double longest_group_seconds() const { return groups_.Max(); }
  double step_interval_seconds() const { return steps_.Mean(); }
  double suggested_target_staleness() const;  // 0 until two steps are done
  double suggested_max_staleness() const;
  Explanation Explain() const;  // these figures, with nothing said of waits

 private:
  RecentValues groups_{1024};
  RecentValues steps_{64};
  std::optional<absl::Time> last_step_;
};

}  // namespace syncopate::trainer
