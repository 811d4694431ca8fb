#include "services/telemetry/sync_tally.h"

#include <algorithm>
#include <utility>

namespace syncopate::telemetry {
namespace {

constexpr std::pair<SyncOutcome, const char*> kNames[] = {{SyncOutcome::kDone, "ok"},
                                                          {SyncOutcome::kRelabelled, "relabelled"},
                                                          {SyncOutcome::kSuperseded, "superseded"},
                                                          {SyncOutcome::kFailed, "failed"}};

v1::SyncTally::Times TimesMessage(const SyncTally::Times& times) {
  v1::SyncTally::Times message;
  for (const auto& [longest, count] : times.histogram.Classes()) {
    v1::SyncTally::Times::Class* one = message.add_classes();
    one->set_up_to_seconds(absl::ToDoubleSeconds(longest));
    one->set_count(count);
  }
  message.set_longest_seconds(absl::ToDoubleSeconds(times.longest));
  return message;
}

SyncTally::Times TimesOf(const v1::SyncTally::Times& message) {
  SyncTally::Times times;
  for (const auto& one : message.classes()) {
    // Half a microsecond, for seconds are no whole number of them.
    const absl::Duration longest = absl::Seconds(one.up_to_seconds()) + absl::Nanoseconds(500);
    times.histogram.Add(longest, std::max<int64_t>(0, one.count()));
  }
  times.longest = absl::Seconds(std::max(0.0, message.longest_seconds()));
  return times;
}

}  // namespace

void SyncTally::Times::Add(double seconds) {
  const absl::Duration time = absl::Seconds(std::max(0.0, seconds));
  histogram.Add(time);
  longest = std::max(longest, time);
}

void SyncTally::Times::Merge(const Times& other) {
  histogram.Merge(other.histogram);
  longest = std::max(longest, other.longest);
}

absl::Duration SyncTally::Times::Quantile(double quantile) const {
  return std::min(histogram.Quantile(quantile), longest);
}

void SyncTally::Add(const v1::SyncRecord& sync) {
  const SyncOutcome outcome = SyncOutcomeOf(sync.result());
  if (outcome == SyncOutcome::kRehearsed || outcome == SyncOutcome::kHeld) return;
  ++outcomes_[outcome];
  for (const auto& [kind, bytes] : sync.bytes_by_kind()) bytes_by_kind_[kind] += bytes;
  if (outcome != SyncOutcome::kDone && outcome != SyncOutcome::kRelabelled) return;
  const auto total = sync.seconds().find("total");
  if (total != sync.seconds().end()) total_.Add(total->second);
  pause_.Add(sync.pause_seconds());
}

void SyncTally::Merge(const SyncTally& other) {
  for (const auto& [outcome, count] : other.outcomes_) outcomes_[outcome] += count;
  for (const auto& [kind, bytes] : other.bytes_by_kind_) bytes_by_kind_[kind] += bytes;
  total_.Merge(other.total_);
  pause_.Merge(other.pause_);
}

int64_t SyncTally::count() const {
  int64_t all = 0;
  for (const auto& [outcome, count] : outcomes_) all += count;
  return all;
}

int64_t SyncTally::Count(SyncOutcome outcome) const {
  const auto found = outcomes_.find(outcome);
  return found == outcomes_.end() ? 0 : found->second;
}

int64_t SyncTally::bytes() const {
  int64_t all = 0;
  for (const auto& [kind, bytes] : bytes_by_kind_) all += bytes;
  return all;
}

v1::SyncTally SyncTally::ToProto() const {
  v1::SyncTally message;
  for (const auto& [outcome, name] : kNames) {
    if (const int64_t count = Count(outcome); count > 0) (*message.mutable_counts())[name] = count;
  }
  message.mutable_bytes_by_kind()->insert(bytes_by_kind_.begin(), bytes_by_kind_.end());
  *message.mutable_total() = TimesMessage(total_);
  *message.mutable_pause() = TimesMessage(pause_);
  return message;
}

SyncTally SyncTally::FromProto(const v1::SyncTally& message) {
  SyncTally tally;
  for (const auto& [outcome, name] : kNames) {
    const auto found = message.counts().find(name);
    if (found != message.counts().end()) tally.outcomes_[outcome] = std::max<int64_t>(0, found->second);
  }
  for (const auto& [kind, bytes] : message.bytes_by_kind()) tally.bytes_by_kind_[kind] = std::max<int64_t>(0, bytes);
  tally.total_ = TimesOf(message.total());
  tally.pause_ = TimesOf(message.pause());
  return tally;
}

}  // namespace syncopate::telemetry
