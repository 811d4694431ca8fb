#include "base/mutex_checks.h"

#include "base/mutex.h"

namespace syncopate {

void StopDeadlockSearch() {
#ifndef SYNCOPATE_TSAN
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

}  // namespace syncopate
