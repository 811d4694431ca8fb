#include "trainer/loop/alarm_log.h"

#include <algorithm>

#include "base/log.h"

namespace syncopate::trainer {

std::vector<std::string> AlarmLog::LogStanding(const PolicyVersion& version) {
  std::vector<std::string> standing = alarms_.Standing();
  if (standing == logged_) return standing;
  for (const std::string& name : LearningAlarms::Names()) {
    const bool stands = std::count(standing.begin(), standing.end(), name) > 0;
    const bool stood = std::count(logged_.begin(), logged_.end(), name) > 0;
    if (stands && !stood) SYNCOPATE_LOG(kWarning, "learning alarm %s at %s", name, version.ToString());
    if (stood && !stands) SYNCOPATE_LOG(kInfo, "learning alarm %s is over at %s", name, version.ToString());
  }
  logged_ = standing;
  return standing;
}

}  // namespace syncopate::trainer
