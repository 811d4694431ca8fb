#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "base/trajectory.h"

namespace syncopate::trainer {

// The time that a prompt rests after its reward failed, so that a reward that fails at once is not called at full
// speed: kFirst, doubled by each further failure up to kLongest. Plain state, no lock; not part of checkpoints.
class PromptBackoff {
 public:
  static constexpr absl::Duration kFirst = absl::Seconds(1);
  static constexpr absl::Duration kLongest = absl::Seconds(30);

  // The reward of one more attempt at it has failed. Its rest begins with the next TakeRested.
  void Add(const GroupId& prompt);
  // Removes and returns the prompts whose rest is over.
  std::vector<GroupId> TakeRested(absl::Time now);
  // Call when the prompt is answered or given up.
  void Forget(const GroupId& prompt);

 private:
  struct Failing {
    int32_t failures = 0;
    bool rests = false;
    absl::Time until = absl::InfinitePast();  // before its rest has begun
  };
  std::map<GroupId, Failing> failing_;
  int64_t resting_ = 0;
};

}  // namespace syncopate::trainer
