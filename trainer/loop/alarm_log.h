#pragma once

#include <string>
#include <vector>

#include "base/policy_version.h"
#include "trainer/data/learning_alarms.h"

namespace syncopate::trainer {

// LearningAlarms with a line in the log whenever an alarm begins or ends. Used by the step thread alone.
class AlarmLog {
 public:
  // What LearningAlarms is told and asks.
  LearningAlarms& alarms() { return alarms_; }
  // The alarms that stand after what `version` was told of.
  std::vector<std::string> LogStanding(const PolicyVersion& version);

 private:
  LearningAlarms alarms_;
  std::vector<std::string> logged_;
};

}  // namespace syncopate::trainer
