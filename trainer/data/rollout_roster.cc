#include "trainer/data/rollout_roster.h"

#include <algorithm>

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
    roster.AddProcess(entry.member);
    roster.SetServing(entry.member.incarnation, entry.serving);
    roster.SetWork(entry.member.incarnation, entry.work);
  }
  return roster;
}

void RolloutRoster::AddProcess(const MemberId& member) {
  if (Find(member.incarnation) != nullptr) return;
  entries_.push_back({.member = member});
  if (entries_.size() <= kListed) return;
  const Work& oldest = entries_.front().work;
  if (earlier_.generated_tokens <= kMostTokens) earlier_.generated_tokens += oldest.generated_tokens;
  if (earlier_.groups_submitted <= kMostTokens) earlier_.groups_submitted += oldest.groups_submitted;
  if (earlier_.judge_tokens <= kMostTokens) earlier_.judge_tokens += oldest.judge_tokens;
  earlier_.busy_seconds += oldest.busy_seconds;
  earlier_.idle_seconds += oldest.idle_seconds;
  entries_.pop_front();
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
  for (const Entry& entry : entries_) {
    total.generated_tokens += entry.work.generated_tokens;
    total.groups_submitted += entry.work.groups_submitted;
    total.busy_seconds += entry.work.busy_seconds;
    total.idle_seconds += entry.work.idle_seconds;
    total.judge_tokens += entry.work.judge_tokens;
  }
  return total;
}

}  // namespace syncopate::trainer
