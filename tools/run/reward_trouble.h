#pragma once

#include <string>

#include "absl/time/time.h"
#include "syncopate/v1/trainer.pb.h"

namespace syncopate::run {

// Finds out from a trainer's status whether its run gets rewards. Pure; not thread-safe.
class RewardTrouble {
 public:
  // The present problem as a sentence, "" if there is none: a rollouter has had no rewards for 5 s (a restarted worker
  // is back sooner), or at least half of the last groups came back without rewards. `now` must not go back.
  std::string Alarm(const v1::TrainerServiceGetStatusResponse& status, absl::Time now);

 private:
  absl::Time without_since_ = absl::InfiniteFuture();  // InfiniteFuture: all rollouters can get rewards
};

}  // namespace syncopate::run
