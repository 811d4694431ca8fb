#include "rollouter/engine/concurrency_limit.h"

#include <algorithm>
#include <utility>

namespace syncopate::rollouter {

void ConcurrencyLimit::Follow(double usage, int64_t running) {
  const bool held_somebody_back = std::exchange(held_somebody_back_, false);
  if (usage > kTrimAbove) {
    TrimTo(running);
  } else if (usage < kGrowBelow && held_somebody_back) {
    // The limit grows by one at a time: a sequence's use of blocks shows only as it grows, many plans after its start.
    limit_ = std::min(most_, limit_ + 1);
  }
}

void ConcurrencyLimit::NotePreemption(int64_t running) { TrimTo(running); }

bool ConcurrencyLimit::Admits(int64_t running, int64_t samples) {
  if (running == 0 || running + samples <= limit_) return true;
  held_somebody_back_ = true;
  return false;
}

void ConcurrencyLimit::TrimTo(int64_t running) { limit_ = std::clamp<int64_t>(running, 1, limit_); }

}  // namespace syncopate::rollouter
