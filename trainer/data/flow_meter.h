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

// The median of the last `window` values: what is usual, however long the longest one was.
class RecentMedian {
 public:
  explicit RecentMedian(size_t window) : window_(window) {}
  void Add(double value);
  void Clear() { values_.clear(), median_ = 0; }
  bool empty() const { return values_.empty(); }
  double median() const { return median_; }  // 0 when empty; of an even number the upper one

 private:
  size_t window_;
  std::deque<double> values_;
  double median_ = 0;
};

// Live measurements for the sizing law: with T the step interval and E[D], D_max the mean and the longest time of a
// group, target_staleness of about E[D]/T keeps the trainer busy and max_staleness of at least D_max/T never stalls it.
class FlowMeter {
 public:
  void OnGroup(absl::Duration time);
  void OnStepDone(absl::Time now);

  double mean_group_seconds() const { return groups_.Mean(); }
  double longest_group_seconds() const { return groups_.Max(); }
  double step_interval_seconds() const { return steps_.Mean(); }
  double suggested_target_staleness() const;  // 0 until two steps are done
  double suggested_max_staleness() const;
  // The age from which on a lease is late: 10 times the median time of the groups accepted last, and 1 s at least. None
  // before `least_groups` are accepted: the first to come are the shortest, and say little of the others.
  std::optional<absl::Duration> Patience(int64_t least_groups) const;
  absl::Duration median_group_time() const { return absl::Seconds(usual_group_.median()); }
  Explanation Explain() const;  // these figures, with nothing said of waits

 private:
  RecentValues groups_{1024};
  RecentMedian usual_group_{64};
  int64_t group_count_ = 0;
  RecentValues steps_{64};
  std::optional<absl::Time> last_step_;
};

}  // namespace syncopate::trainer
