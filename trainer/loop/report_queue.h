#pragma once

#include <cstdint>
#include <functional>

#include "base/mutex.h"
#include "base/worker.h"
#include "trainer/loop/run_observer.h"

namespace syncopate::trainer {

// The thread that awaits stagings, publishes versions and passes a run's reports on, one after the other in the order
// of calls: so a step's line that was asked for after its staging began is written when the staging has ended, while
// the step thread makes the next step. Thread-safe.
class ReportQueue final : public RunObserver {
 public:
  // `observer` is borrowed. It is called by this object's thread, but for AddPhase(), RecordMemory() and
  // RecordCheckpoint(), which are passed on at once.
  explicit ReportQueue(RunObserver* observer) : observer_(observer) {}
  ~ReportQueue() override { Stop(); }

  void Post(std::function<void()> task);
  // Blocks until all that was posted is done; each task ends by itself. Not from a task.
  void AwaitIdle();
  // Waits as above and ends the thread: nothing is posted any more. Idempotent.
  void Stop() { worker_.Stop(); }

  void RecordStep(const StepReport& report) override;
  void RecordEvaluation(const EvaluationReport& report) override;
  void RecordLostEvaluation(const PolicyVersion& version) override;
  void RecordPublication(const PolicyVersion& version, uint64_t digest, double stage_seconds) override;
  void RecordCheckpoint(const PolicyVersion& version, const absl::Status& saved) override {
    observer_->RecordCheckpoint(version, saved);
  }
  void AddPhase(LoopPhase phase, double seconds) override { observer_->AddPhase(phase, seconds); }
  void RecordMemory(const PolicyMemory& memory) override { observer_->RecordMemory(memory); }

 private:
  RunObserver* const observer_;
  Mutex mutex_;
  int64_t open_tasks_ ABSL_GUARDED_BY(mutex_) = 0;  // posted and not done
  Worker worker_;                                   // last: it uses all of the above
};

}  // namespace syncopate::trainer
