#include "trainer/data/rollout_roster.h"

#include <algorithm>
#include <utility>

namespace syncopate::trainer {
namespace {

// A century of a fast GPU; sums of many processes stay far from overflow.
constexpr int64_t kMostTokens = int64_t{1} << 50;
constexpr double kMostSeconds = 1e10;

bool IsPossible(const RolloutRoster::Work& work) {
  auto counts = [](int64_t count) { return count >= 0 && count <= kMostTokens; };
  auto lasts = [](double seconds) { return seconds >= 0 && seconds <= kMostSeconds; };  // false for NaN
  return counts(work.generated_tokens) && counts(work.groups_submitted) && counts(work.judge_tokens) &&
         lasts(work.busy_seconds) && lasts(work.idle_seconds);
}

// Whether one more process can be added.
bool HasRoomFor(const RolloutRoster::Work& sum) {
  return std::max({sum.generated_tokens, sum.groups_submitted, sum.judge_tokens}) <= kMostTokens;
}

RolloutRoster::Work Sum(RolloutRoster::Work sum, const RolloutRoster::Work& work, int sign) {
  sum.generated_tokens += sign * work.generated_tokens;
  sum.groups_submitted += sign * work.groups_submitted;
  sum.judge_tokens += sign * work.judge_tokens;
  sum.busy_seconds += sign * work.busy_seconds;
  sum.idle_seconds += sign * work.idle_seconds;
  return sum;
}

bool HasLeft(const std::deque<RolloutRoster::Entry>& entries) {
  return std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return entry.left != 0; });
}

}  // namespace

RolloutRoster::Entry* RolloutRoster::Find(const std::string& incarnation) {
  auto found = std::find_if(entries_.rbegin(), entries_.rend(),
                            [&](const Entry& entry) { return entry.member.incarnation == incarnation; });
  return found == entries_.rend() ? nullptr : &*found;
}

RolloutRoster RolloutRoster::Restore(std::deque<Entry> entries, const Work& earlier) {
  RolloutRoster roster;
  if (IsPossible(earlier)) roster.earlier_ = earlier;
  for (Entry& entry : entries) {
    if (roster.Find(entry.member.incarnation) != nullptr) continue;
    if (!IsPossible(entry.work)) entry.work = {};
    entry.left = ++roster.departures_;
    roster.entries_.push_back(std::move(entry));
  }
  return roster;
}

void RolloutRoster::AddProcess(const MemberId& member) {
  for (Entry& entry : entries_) {
    const bool is_other = entry.member.incarnation != member.incarnation;
    if (is_other && entry.left == 0 && entry.member.replica_id == member.replica_id) entry.left = ++departures_;
  }
  if (Entry* known = Find(member.incarnation)) {
    known->left = 0;
    return;
  }
  auto returned = std::find_if(summed_.begin(), summed_.end(), [&member](const Entry& entry) {
    return entry.member.incarnation == member.incarnation;
  });
  if (returned != summed_.end()) {
    // It goes on counting from what it had.
    earlier_ = Sum(earlier_, returned->work, -1);
    earlier_.busy_seconds = std::max(0.0, earlier_.busy_seconds);  // rounding
    earlier_.idle_seconds = std::max(0.0, earlier_.idle_seconds);
    entries_.push_back(std::move(*returned));
    entries_.back().left = 0;
    summed_.erase(returned);
  } else {
    entries_.push_back({.member = member});
  }
  while (entries_.size() > kListed && HasLeft(entries_)) SumUpOldest();
}

void RolloutRoster::RemoveProcess(const std::string& incarnation) {
  if (Entry* entry = Find(incarnation)) entry->left = ++departures_;
}

// Precondition: one of the listed processes has left.
void RolloutRoster::SumUpOldest() {
  auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.left == 0, a.left) < std::pair(b.left == 0, b.left);
  });
  if (HasRoomFor(earlier_)) {
    earlier_ = Sum(earlier_, oldest->work, 1);
    summed_.push_back(std::move(*oldest));
    if (summed_.size() > kRemembered) summed_.pop_front();
  }
  entries_.erase(oldest);
}

void RolloutRoster::SetServing(const std::string& incarnation, const PolicyVersion& version) {
  if (Entry* entry = Find(incarnation)) entry->serving = version;
}

void RolloutRoster::SetWork(const std::string& incarnation, const Work& work) {
  Entry* entry = Find(incarnation);
  if (entry != nullptr && IsPossible(work)) entry->work = work;
}

RolloutRoster::Work RolloutRoster::Total() const {
  Work total = earlier_;
  for (const Entry& entry : entries_) total = Sum(total, entry.work, 1);
  return total;
}

}  // namespace syncopate::trainer
