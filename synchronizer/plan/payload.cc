#include "synchronizer/plan/payload.h"

namespace syncopate::synchronizer {

// A sleep of level 1 keeps the weights on the host, and one that frees nothing keeps them where they are.
bool NeedsBase(const ReceiverWeights& receiver) {
  return !receiver.base_present || (receiver.sleep_level == 2 && receiver.free_cache_engine && receiver.slept);
}

}  // namespace syncopate::synchronizer
