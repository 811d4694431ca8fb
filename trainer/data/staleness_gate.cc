#include "trainer/data/staleness_gate.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::trainer {

absl::Status StalenessGate::Options::Validate() const {
  auto bad = [](const std::string& text) { return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", text); };
  if (batch_groups < 1)
    return bad(absl::StrCat("batch_groups is ", batch_groups, ", but a batch has at least 1 group"));
  if (max_staleness < 0) return bad(absl::StrCat("max_staleness is ", max_staleness, ", but cannot be negative"));
  if (!(target_staleness >= 0 && target_staleness <= static_cast<double>(max_staleness))) {
    return bad(absl::StrCat("target_staleness is ", target_staleness, ", but must be between 0 and max_staleness (",
                            max_staleness, ")"));
  }
  return absl::OkStatus();
}

StalenessGate::StalenessGate(const Options& options, int64_t step) : options_(options), step_(step) {
  SYNCOPATE_CHECK(options.Validate().ok());
}

// N(d) changes at deadlines alone, so these are the only d to look at; between them the right side only grows.
bool StalenessGate::HallHolds(const Deadlines& deadlines, int64_t slack) const {
  int64_t due = 0;
  for (const auto& [deadline, count] : deadlines) {
    due += count;
    if (due > options_.batch_groups * (deadline - step_ + slack)) return false;
  }
  // One that is past can be met by no schedule, however few groups there are.
  return deadlines.empty() || deadlines.begin()->first >= step_;
}

// A step that runs has its batch already: the next place is one step further off.
bool StalenessGate::KeepsBoundAtAdmission(const Deadlines& with_new_group) const {
  return HallHolds(with_new_group, training_ ? 0 : 1);
}

bool StalenessGate::KeepsBoundAtTake(const Deadlines& without_batch) const { return HallHolds(without_batch, 0); }

bool StalenessGate::Fits(int64_t start) const {
  if (options_.on_deadline == OnDeadline::kMask) {
    const int64_t next_take = step_ + (training_ ? 1 : 0);
    return next_take - start <= options_.max_staleness;
  }
  Deadlines deadlines = deadlines_;
  ++deadlines[start + options_.max_staleness];
  return KeepsBoundAtAdmission(deadlines);
}

bool StalenessGate::MayKeep(int64_t start) const { return options_.on_deadline == OnDeadline::kMask || Fits(start); }

bool StalenessGate::MayAdmit(int64_t start) const {
  const double limit =
      (options_.target_staleness + (training_ ? 0.0 : 1.0)) * static_cast<double>(options_.batch_groups);
  constexpr double kRounding = 1e-9;  // 0.1 * 10 is not quite 1
  return static_cast<double>(outstanding()) < limit - kRounding && Fits(start);
}

void StalenessGate::Admit(const GroupId& group, int64_t start) {
  bool is_new = groups_.emplace(group, Entry{.start = start}).second;
  SYNCOPATE_CHECK(is_new);
  ++deadlines_[start + options_.max_staleness];
}

void StalenessGate::Complete(const GroupId& group) {
  Entry& entry = groups_.at(group);
  SYNCOPATE_CHECK(!entry.completed);
  entry.completed = true;
  completed_.emplace(entry.start + options_.max_staleness, group);
}

void StalenessGate::Remove(const GroupId& group) {
  auto found = groups_.find(group);
  SYNCOPATE_CHECK(found != groups_.end());
  const int64_t deadline = found->second.start + options_.max_staleness;
  if (--deadlines_[deadline] == 0) deadlines_.erase(deadline);
  completed_.erase({deadline, group});
  groups_.erase(found);
}

void StalenessGate::Release(const GroupId& group) { Remove(group); }

std::vector<GroupId> StalenessGate::Pick(int64_t size) const {
  if (training_ || size < 1 || completed() < size) return {};
  std::vector<GroupId> batch;
  // Groups that still run stay in it: taking the completed ones must leave room for them too.
  Deadlines rest = deadlines_;
  for (auto next = completed_.begin(); static_cast<int64_t>(batch.size()) < size; ++next) {
    batch.push_back(next->second);
    if (--rest[next->first] == 0) rest.erase(next->first);
  }
  if (options_.on_deadline != OnDeadline::kMask && !KeepsBoundAtTake(rest)) return {};
  return batch;
}

void StalenessGate::BeginStep(const std::vector<GroupId>& batch) {
  SYNCOPATE_CHECK(!training_);
  for (const GroupId& group : batch) Remove(group);
  training_ = true;
}

void StalenessGate::EndStep() {
  SYNCOPATE_CHECK(training_);
  training_ = false;
  ++step_;
}

int64_t StalenessGate::OldestStart() const {
  return deadlines_.empty() ? step_ : deadlines_.begin()->first - options_.max_staleness;
}

// A batch is there and may not be taken: some group that runs must come first, and it is the one of earliest deadline.
std::optional<GroupId> StalenessGate::Blocker() const {
  if (training_ || completed() < options_.batch_groups || !Pick().empty()) return std::nullopt;
  return EarliestRunning();
}

std::optional<GroupId> StalenessGate::EarliestRunning() const {
  std::optional<std::pair<int64_t, GroupId>> earliest;
  for (const auto& [group, entry] : groups_) {
    std::pair<int64_t, GroupId> key(entry.start + options_.max_staleness, group);
    if (!entry.completed && (!earliest.has_value() || key < *earliest)) earliest = key;
  }
  if (!earliest.has_value()) return std::nullopt;
  return earliest->second;
}

}  // namespace syncopate::trainer
