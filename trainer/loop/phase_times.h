#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "trainer/loop/run_observer.h"

namespace syncopate::trainer {

// Tells the observer where the step thread's time goes, so that the phases add up to the thread's whole time: what no
// phase accounts for is "other". Used by the step thread alone.
class PhaseTimes {
 public:
  PhaseTimes(RunObserver* observer, absl::Time started) : observer_(observer), started_(started) {}

  void Add(LoopPhase phase, absl::Duration time) { Add(phase, absl::ToDoubleSeconds(time)); }
  void Add(LoopPhase phase, double seconds) {
    accounted_seconds_ += seconds;
    observer_->AddPhase(phase, seconds);
  }
  // Accounts the rest of the time until now as "other".
  void AddRest(absl::Time now) {
    Add(LoopPhase::kOther, std::max(0.0, absl::ToDoubleSeconds(now - started_) - accounted_seconds_));
  }

 private:
  RunObserver* const observer_;
  const absl::Time started_;
  double accounted_seconds_ = 0;
};

}  // namespace syncopate::trainer
