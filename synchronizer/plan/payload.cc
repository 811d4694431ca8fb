#include "synchronizer/plan/payload.h"

#include <algorithm>

namespace syncopate::synchronizer {

// A sleep of level 1 keeps the weights on the host; a sleep that frees no memory leaves them in place.
bool NeedsBase(const ReceiverWeights& receiver) {
  return !receiver.base_present || (receiver.sleep_level == 2 && receiver.free_cache_engine && receiver.slept);
}

ReceiverWeights AfterSleep(const ReceiverWeights& before, int level) {
  ReceiverWeights after = before;
  after.sleep_level = before.slept ? std::max(before.sleep_level, level) : level;
  after.free_cache_engine = true;
  after.slept = true;
  return after;
}

}  // namespace syncopate::synchronizer
