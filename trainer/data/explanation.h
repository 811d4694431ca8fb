#pragma once

#include <string>

namespace syncopate::trainer {

// Tells what the trainer waits for, since when, on which rollouter, and what would end the wait; and gives the figures
// of the sizing law (see FlowMeter).
struct Explanation {
  std::string waiting_for = {};      // "nothing", "groups", "deadline", "rollouters", "end"; owners add more values
  double since_seconds = 0;          // seconds of the present wait; 0 without one
  std::string detail = {};           // one sentence
  std::string rollouter = {};        // replica_id of the rollouter waited for; "" if none
  std::string unblocked_by = {};     // one sentence: what would end the wait
  double mean_group_seconds = 0;     // E[D]: mean time from lease to accepted group
  double longest_group_seconds = 0;  // D_max: longest such time
  double step_interval_seconds = 0;  // T: mean time between steps
  double suggested_target_staleness = 0;  // E[D] / T
  double suggested_max_staleness = 0;     // D_max / T, rounded up
};

}  // namespace syncopate::trainer
