#pragma once

#include <string>

namespace syncopate::trainer {

// What the trainer is waiting for, since when, on whom, and what would unblock it; and the sizing law's figures.
struct Explanation {
  std::string waiting_for = {};           // "nothing", "groups", "deadline", "rollouters", "end"; owners add their own
  double since_seconds = 0;               // how long it has been waiting; 0 while it is not
  std::string detail = {};                // a sentence
  std::string rollouter = {};             // replica_id it waits on, if one
  std::string unblocked_by = {};          // a sentence: what would end the wait
  double mean_group_seconds = 0;          // E[D]
  double longest_group_seconds = 0;       // D_max
  double step_interval_seconds = 0;       // T
  double suggested_target_staleness = 0;  // E[D] / T
  double suggested_max_staleness = 0;     // D_max / T, rounded up
};

}  // namespace syncopate::trainer
