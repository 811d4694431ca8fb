#include "trainer/loop/report_queue.h"

#include <utility>

#include "base/status.h"

namespace syncopate::trainer {

void ReportQueue::Post(std::function<void()> task) {
  {
    MutexLock lock(&mutex_);
    ++open_tasks_;
  }
  // The step thread waits for this queue at least once a step, so that few tasks are open at a time.
  SYNCOPATE_CHECK(worker_.Post([this, task = std::move(task)] {
    task();
    MutexLock lock(&mutex_);
    --open_tasks_;
  }));
}

void ReportQueue::AwaitIdle() {
  MutexLock lock(&mutex_);
  auto is_idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_tasks_ == 0; };
  mutex_.Await(Condition(&is_idle));
}

void ReportQueue::RecordStep(const StepReport& report) {
  Post([this, report] { observer_->RecordStep(report); });
}

void ReportQueue::RecordEvaluation(const EvaluationReport& report) {
  Post([this, report] { observer_->RecordEvaluation(report); });
}

void ReportQueue::RecordLostEvaluation(const PolicyVersion& version) {
  Post([this, version] { observer_->RecordLostEvaluation(version); });
}

void ReportQueue::RecordPublication(const PolicyVersion& version, uint64_t digest, double stage_seconds) {
  Post([this, version, digest, stage_seconds] { observer_->RecordPublication(version, digest, stage_seconds); });
}

}  // namespace syncopate::trainer
