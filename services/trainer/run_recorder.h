#pragma once

#include "services/telemetry/event_recorder.h"
#include "services/telemetry/trainer_metrics.h"
#include "services/trainer/run_reporter.h"
#include "trainer/loop/run_observer.h"

namespace syncopate::trainerd {

// Hands what a run tells on to metrics.jsonl and those who watch it, to Prometheus and to the event log. Of the step
// thread.
class RunRecorder final : public trainer::RunObserver {
 public:
  // All borrowed; they must outlive this.
  RunRecorder(RunReporter* reporter, telemetry::TrainerMetrics* metrics, telemetry::EventRecorder* events)
      : reporter_(reporter), metrics_(metrics), events_(events) {}

  void RecordStep(const trainer::StepReport& report) override;
  void RecordEvaluation(const trainer::EvaluationReport& report) override;
  void RecordPublication(const PolicyVersion& version, uint64_t digest, double stage_seconds) override;
  void RecordCheckpoint(const PolicyVersion& version, const absl::Status& saved) override;
  void AddPhase(trainer::LoopPhase phase, double seconds) override;

 private:
  RunReporter* const reporter_;
  telemetry::TrainerMetrics* const metrics_;
  telemetry::EventRecorder* const events_;
};

}  // namespace syncopate::trainerd
