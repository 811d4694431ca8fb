#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/worker.h"
#include "trainer/data/evaluation.h"
#include "trainer/data/prompts.h"
#include "trainer/data/records.h"
#include "trainer/loop/run_observer.h"
#include "trainer/loss/loss_options.h"
#include "trainer/record/sample_file.h"
#include "trainer/record/sample_record.h"

namespace syncopate::trainerd {

// Writes the chosen samples of steps, evaluations and drops to samples.jsonl, on a thread of its own: no caller waits
// for text to be made, or for the disk. What waits is bounded by kMostWaitingBytes of answers; beyond it, samples are
// lost and counted. Thread-safe.
class SampleRecorder {
 public:
  struct Options {
    trainer::SampleChoice training = {};  // `evaluation` chose when its result was made
    loss::LossOptions loss = {};
    const trainer::PromptSource* prompts = nullptr;  // renders ids; borrowed
  };
  static constexpr int64_t kMostWaitingBytes = 256 << 20;

  SampleRecorder(const Options& options, std::unique_ptr<trainer::SampleFile> file, const Clock* clock = Clock::Real());
  ~SampleRecorder() { Stop(); }

  void RecordStep(const trainer::StepReport& report);
  void RecordEvaluation(const trainer::EvaluationReport& report);
  void RecordDrop(const trainer::DropRecord& drop, const PolicyVersion& at);

  int64_t lost() const;  // samples that were chosen and not written
  // Writes what waits and ends the thread; blocks for the disk. Idempotent.
  void Stop() { worker_.Stop(); }

 private:
  // `tokens`: of all answers that `work` keeps in memory; `samples`: that it writes.
  void Post(int64_t tokens, int64_t samples, std::function<void()> work);
  void WriteStep(const trainer::StepReport& report);
  void WriteEvaluation(const PolicyVersion& version, const std::vector<trainer::EvaluatedAnswer>& answers);
  void WriteDrop(const trainer::DropRecord& drop, const PolicyVersion& at);
  void WriteGroup(const TrajectoryGroup& group, const trainer::PromptOrigin& origin,
                  const std::vector<trainer::SampleResult>& results, trainer::SampleRecord record);
  void Write(trainer::SampleRecord record);

  const Options options_;
  const Clock* const clock_;
  const std::unique_ptr<trainer::SampleFile> file_;  // used by the worker's tasks only
  mutable Mutex mutex_;
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t skipped_ ABSL_GUARDED_BY(mutex_) = 0;     // samples for which there was no room
  int64_t lost_lines_ ABSL_GUARDED_BY(mutex_) = 0;  // of file_
  Worker worker_;                                   // last: it uses all of the above
};

}  // namespace syncopate::trainerd
