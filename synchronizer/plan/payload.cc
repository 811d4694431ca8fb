#include "synchronizer/plan/payload.h"

namespace syncopate::synchronizer {

// A sleep of level 1 keeps the weights on the host; a sleep that frees no memory leaves them in place.
bool NeedsBase(const ReceiverWeights& receiver) {
  return !receiver.base_present || (receiver.sleep_level == 2 && receiver.free_cache_engine && receiver.slept);
}

}  // namespace syncopate::synchronizer
