#include "rollouter/engine/concurrency_limit.h"

#include <algorithm>
#include <utility>

namespace syncopate::rollouter {

void ConcurrencyLimit::Follow(double usage, int64_t running) {
  const bool has_refused = std::exchange(has_refused_, false);
  if (usage > kTrimAbove) {
    TrimTo(running);
  } else if (usage < kGrowBelow && has_refused) {
    // The limit grows by one at a time: a sequence's use of blocks shows only as it grows, many plans after its start.
    limit_ = std::min(most_, limit_ + 1);
  }
}

void ConcurrencyLimit::NotePreemption(int64_t running) { TrimTo(running); }

bool ConcurrencyLimit::Admits(int64_t running, int64_t samples) {
  if (running == 0 || running + samples <= limit_) return true;
  has_refused_ = true;
  return false;
}

void ConcurrencyLimit::TrimTo(int64_t running) { limit_ = std::clamp<int64_t>(running, 1, limit_); }

}  // namespace syncopate::rollouter
