#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "base/event_recorder.h"
#include "services/telemetry/trainer_metrics.h"
#include "services/trainer/sample_recorder.h"
#include "trainer/data/rollout_roster.h"
#include "trainer/loop/run_observer.h"
#include "trainer/record/run_reporter.h"
#include "trainer/record/tensorboard_file.h"

namespace syncopate::trainerd {

// Passes a run's reports to metrics.jsonl and its watchers, to samples.jsonl, to TensorBoard's file, to Prometheus and
// to the event log.
// Called as RunObserver says; RecordMemory() may be called by any thread.
class RunRecorder final : public trainer::RunObserver {
 public:
  // The work of all rollouters so far, summed.
  using RolloutWork = std::function<trainer::RolloutRoster::Work()>;

  // All are borrowed and must outlive this object.
  RunRecorder(trainer::RunReporter* reporter, telemetry::TrainerMetrics* metrics, EventRecorder* events)
      : reporter_(reporter), metrics_(metrics), events_(events) {}

  // Call all before the first record. Without them no TensorBoard file is written, and rollouters never count as idle.
  void SetTensorBoard(std::unique_ptr<trainer::TensorBoardFile> file) { tensorboard_ = std::move(file); }
  // Borrowed; without it no samples are written.
  void SetSamples(SampleRecorder* samples) { samples_ = samples; }
  void SetRolloutWork(RolloutWork work) { work_ = std::move(work); }
  // The memory of send slots on the policy's device, which the policy's own figures do not include.
  void SetSendBytes(int64_t bytes) { send_bytes_ = bytes; }

  void RecordStep(const trainer::StepReport& report) override;
  void RecordEvaluation(const trainer::EvaluationReport& report) override;
  void RecordLostEvaluation(const PolicyVersion& version) override;
  void RecordPublication(const PolicyVersion& version, uint64_t digest, double stage_seconds) override;
  void RecordCheckpoint(const PolicyVersion& version, const absl::Status& saved) override;
  void AddPhase(trainer::LoopPhase phase, double seconds) override;
  void RecordMemory(const trainer::PolicyMemory& memory) override;

 private:
  double RolloutersIdle();
  void AddSendBytes(trainer::StepFigures* figures) const;
  void CountLostRecords();

  trainer::RunReporter* const reporter_;
  telemetry::TrainerMetrics* const metrics_;
  EventRecorder* const events_;
  std::unique_ptr<trainer::TensorBoardFile> tensorboard_;
  SampleRecorder* samples_ = nullptr;
  RolloutWork work_;
  trainer::RolloutRoster::Work work_before_;
  double rollouters_idle_ = 0;
  int64_t send_bytes_ = 0;
};

}  // namespace syncopate::trainerd
