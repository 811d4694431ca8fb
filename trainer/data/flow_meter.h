#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "trainer/data/explanation.h"

namespace syncopate::trainer {

// Keeps the last `window` values of a quantity.
class RecentValues {
 public:
  explicit RecentValues(size_t window) : window_(window) {}
  void Add(double value);
  double Mean() const;  // 0 when empty
  double Max() const;   // 0 when empty
  size_t count() const { return values_.size(); }
  std::vector<double> Values() const { return {values_.begin(), values_.end()}; }
  void Clear() { values_.clear(), sum_ = 0; }

 private:
  size_t window_;
  std::deque<double> values_;
  double sum_ = 0;
};

// The median of the last `window` values: one very long value does not change it much.
class RecentMedian {
 public:
  explicit RecentMedian(size_t window) : window_(window) {}
  void Add(double value);
  void Clear() { values_.clear(), median_ = 0; }
  bool empty() const { return values_.empty(); }
  double median() const { return median_; }  // 0 when empty; the upper middle value of an even number

 private:
  size_t window_;
  std::deque<double> values_;
  double median_ = 0;
};

// Measures the inputs of the sizing law. T is the mean interval between steps; E[D] and D_max are the mean and the
// longest time of a group. A target_staleness of about E[D]/T keeps the trainer busy, and a max_staleness of at least
// D_max/T never stalls it. Plain state; not thread-safe.
class FlowMeter {
 public:
  void OnGroup(absl::Duration time);
  void OnGroupDropped(absl::Duration time);  // `time`: its age when it was dropped
  // A group is answered by so many answers of so many tokens in all; one that is not kept is replaced by another.
  void OnAnswers(int64_t answers, int64_t tokens, bool kept);
  void OnStepDone(absl::Time now);
  // The step trained answers of rollouters, of which `rollouters` are connected; the trainer waited for its batch for
  // `waited`. Call it before OnStepDone of the same step.
  void OnRolloutStep(absl::Duration waited, int64_t rollouters, absl::Time now);
  // A lease goes to a rollouter whose weights are so many steps older than the trainer's.
  void OnLease(int64_t lag_steps) { lags_.Add(static_cast<double>(lag_steps)); }

  double mean_group_seconds() const { return groups_.Mean(); }
  double longest_group_seconds() const { return groups_.Max(); }
  double step_interval_seconds() const { return steps_.Mean(); }
  // The mean time of the answered groups over the mean time of all, where a dropped group counts with its age when it
  // was dropped. Long answers take long, so a value below 1 says by how much dropping favours short ones, at least. 1
  // without drops.
  double answered_time_ratio() const;
  // Mean tokens of the answers that were kept over that of all answers: below 1 by as much as replacing groups without
  // signal favours short ones. 1 without replaced groups.
  double kept_length_ratio() const;
  // The share of answered groups that was kept; 1 before the first.
  double kept_ratio() const { return answers_ > 0 ? kept_answers_ / answers_ : 1; }
  // Of the last groups, at most 4096: fewer would often lack the rare long ones.
  std::vector<double> group_seconds() const { return groups_.Values(); }
  // The mean interval between steps less the wait for a batch. A step of more than kOutlier times the median, as a pause
  // makes it, does not count. 0 until two steps are done.
  double busy_seconds() const { return busy_.Mean(); }
  // The mean interval between steps with the rollouters that are connected now; 0 before kFewestSteps of them.
  double settled_interval_seconds() const { return settled_.count() < kFewestSteps ? 0 : settled_.Mean(); }
  double lag_steps() const { return lags_.Mean(); }
  double suggested_target_staleness() const;  // 0 until two steps are done
  double suggested_max_staleness() const;
  // The age at which a lease counts as late: 10 times the median time of the recently accepted groups, and at least 1
  // s. Returns nullopt before `least_groups` groups are accepted: the first groups to finish are the shortest and do
  // not represent the others.
  std::optional<absl::Duration> Patience(int64_t least_groups) const;
  absl::Duration median_group_time() const { return absl::Seconds(usual_group_.median()); }
  Explanation Explain() const;  // fills in only these figures and nothing about waits

 private:
  static constexpr double kOutlier = 10;
  static constexpr size_t kFewestSteps = 8;

  RecentValues groups_{4096};
  RecentMedian usual_group_{64};
  int64_t group_count_ = 0, dropped_count_ = 0;
  double group_seconds_ = 0, dropped_seconds_ = 0;
  double answers_ = 0, answer_tokens_ = 0, kept_answers_ = 0, kept_tokens_ = 0;
  RecentValues steps_{64};
  std::optional<absl::Time> last_step_;
  RecentValues busy_{256}, settled_{256}, lags_{1024};
  RecentMedian usual_busy_{64};
  int64_t rollouters_ = -1;  // connected at the last step of rollouters' answers; -1: there was none
};

}  // namespace syncopate::trainer
