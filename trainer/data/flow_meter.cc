#include "trainer/data/flow_meter.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace syncopate::trainer {
namespace {

// A lease is late only when far beyond the usual time: a second attempt costs a whole group of generation.
constexpr double kLateTimes = 10;
constexpr absl::Duration kLeastPatience = absl::Seconds(1);

}  // namespace

void RecentMedian::Add(double value) {
  values_.push_back(value);
  if (values_.size() > window_) values_.pop_front();
  std::vector<double> sorted(values_.begin(), values_.end());
  auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  median_ = *middle;
}

void RecentValues::Add(double value) {
  values_.push_back(value);
  sum_ += value;
  if (values_.size() > window_) {
    sum_ -= values_.front();
    values_.pop_front();
  }
}

double RecentValues::Mean() const { return values_.empty() ? 0 : sum_ / static_cast<double>(values_.size()); }

double RecentValues::Max() const { return values_.empty() ? 0 : *std::max_element(values_.begin(), values_.end()); }

void FlowMeter::OnGroup(absl::Duration time) {
  groups_.Add(absl::ToDoubleSeconds(time));
  usual_group_.Add(absl::ToDoubleSeconds(time));
  group_seconds_ += absl::ToDoubleSeconds(time);
  ++group_count_;
}

void FlowMeter::OnGroupDropped(absl::Duration time) {
  dropped_seconds_ += absl::ToDoubleSeconds(time);
  ++dropped_count_;
}

double FlowMeter::answered_time_ratio() const {
  const double all = group_seconds_ + dropped_seconds_;
  if (dropped_count_ == 0 || group_count_ == 0 || all <= 0) return 1;
  const double mean = all / static_cast<double>(group_count_ + dropped_count_);
  return group_seconds_ / static_cast<double>(group_count_) / mean;
}

void FlowMeter::OnAnswers(int64_t answers, int64_t tokens, bool kept) {
  answers_ += static_cast<double>(answers);
  answer_tokens_ += static_cast<double>(tokens);
  if (!kept) return;
  kept_answers_ += static_cast<double>(answers);
  kept_tokens_ += static_cast<double>(tokens);
}

double FlowMeter::kept_length_ratio() const {
  if (kept_answers_ == 0 || kept_answers_ == answers_) return 1;
  return kept_tokens_ / kept_answers_ / (answer_tokens_ / answers_);
}

std::optional<absl::Duration> FlowMeter::Patience(int64_t least_groups) const {
  if (group_count_ < least_groups) return std::nullopt;
  return std::max(kLateTimes * median_group_time(), kLeastPatience);
}

void FlowMeter::OnStepDone(absl::Time now) {
  if (last_step_.has_value()) steps_.Add(absl::ToDoubleSeconds(now - *last_step_));
  last_step_ = now;
}

void FlowMeter::OnRolloutStep(absl::Duration waited, int64_t rollouters, absl::Time now) {
  const int64_t before = std::exchange(rollouters_, rollouters);
  if (!last_step_.has_value()) return;
  const double interval = absl::ToDoubleSeconds(now - *last_step_);
  const double busy = std::max(0.0, interval - absl::ToDoubleSeconds(waited));
  usual_busy_.Add(busy);
  if (busy > kOutlier * usual_busy_.median()) return;
  busy_.Add(busy);
  // The pace of this step was made by two numbers of rollouters.
  if (before != rollouters) return settled_.Clear();
  settled_.Add(interval);
}

double FlowMeter::suggested_target_staleness() const {
  return step_interval_seconds() > 0 ? mean_group_seconds() / step_interval_seconds() : 0;
}

double FlowMeter::suggested_max_staleness() const {
  return step_interval_seconds() > 0 ? std::ceil(longest_group_seconds() / step_interval_seconds()) : 0;
}

Explanation FlowMeter::Explain() const {
  return {.mean_group_seconds = mean_group_seconds(),
          .longest_group_seconds = longest_group_seconds(),
          .step_interval_seconds = step_interval_seconds(),
          .suggested_target_staleness = suggested_target_staleness(),
          .suggested_max_staleness = suggested_max_staleness()};
}

}  // namespace syncopate::trainer
