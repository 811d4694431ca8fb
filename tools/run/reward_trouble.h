#pragma once

#include <string>

#include "absl/time/time.h"
#include "syncopate/v1/trainer.pb.h"

namespace syncopate::run {

// Finds out of what a trainer says whether its run gets rewards. Pure; not thread-safe.
class RewardTrouble {
 public:
  // A sentence, "" if nothing stands at `now`: a rollouter has had no rewards for 5 s, as a worker that was started again
  // is there sooner, or at least half of the last groups came back without. Times must not go back.
  std::string Alarm(const v1::TrainerServiceGetStatusResponse& status, absl::Time now);

 private:
  absl::Time without_since_ = absl::InfiniteFuture();  // InfiniteFuture: all rollouters can have them
};

}  // namespace syncopate::run
