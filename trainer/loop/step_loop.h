#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status.h"
#include "trainer/checkpoint/best_checkpoint.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/data/learning_alarms.h"
#include "trainer/data/prompts.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/run_observer.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// The step thread of a trainer: takes batches, trains, stages and publishes versions, evaluates and saves, until the
// run is over. Run() is that thread; everything else is thread-safe.
//
// After a restore the logged takes are repeated first and nothing is published meanwhile: rollouters that survived
// serve the bits at which the repetition ends, so they are relabelled instead of sent backwards.
class StepLoop {
 public:
  static constexpr char kDataFile[] = "data.pb";  // of a checkpoint: the data position

  struct Options {
    int64_t steps = 100;                                 // the run is complete after this one
    absl::Duration duration = absl::InfiniteDuration();  // or after this long
    int64_t publish_every_steps = 1;
    int64_t evaluate_every_steps = 10;    // 0: only at the end
    int64_t checkpoint_every_steps = 50;  // 0: only at the end
    bool checkpoint_at_end = true;
    int keep_checkpoints = 2;
    bool serve_complete = false;  // publish what is restored though nothing is left to do, for rollouters started anew
    absl::Duration last_evaluation_deadline = absl::Seconds(60);
  };
  // All borrowed; they must outlive the loop.
  struct Parts {
    Policy* policy;
    TrainingData* data;
    WeightStager* stager;  // of `policy`
    CheckpointStore* checkpoints;
    RunObserver* observer;
    const PromptSource* evaluation_prompts;
    // Tells the synchronizer of a staged version. Does not block.
    std::function<void(Publication)> publish;
    // The epoch of the newest trainer that has taken over the run directory, as it wrote it down before anything else.
    std::function<absl::StatusOr<int64_t>()> newest_epoch;
    // Weight syncs fail, and are tried again: nobody can answer for the newest version yet. Null: they do not.
    std::function<bool()> syncs_fail = nullptr;
  };
  enum class Outcome {
    kCompleted,  // all steps, the time, or the data
    kStopped,    // asked to
    kFenced,     // a newer trainer has taken over: nothing was saved
  };
  using CheckpointDone = std::function<void(const absl::StatusOr<std::string>&)>;

  // `start` is the version that `policy` is at; its epoch is this trainer's.
  StepLoop(const Options& options, const Parts& parts, const PolicyVersion& start);

  // Blocks until the run is over. An error means that it cannot go on; the log and the last checkpoint are whole.
  // NON_FINITE: training has spoilt the weights; they are neither published nor saved.
  absl::StatusOr<Outcome> Run();

  // No step begins after this has returned; the one under way ends.
  void Pause();
  void Resume();
  // Ends the run after the step under way, with a checkpoint. Idempotent.
  void Stop();
  // The same without a checkpoint: this trainer has lost the right to write.
  void StopFenced();
  // Whether somebody has asked for the end, before or after the run was over.
  bool stop_requested() const;
  // Saves between two steps. CANCELLED (reason RUN_OVER) if the run ends first.
  void SaveCheckpoint(CheckpointDone done);
  // Calls `work` on the step thread between two steps, with the version that the policy is at and whose weights are
  // finite; once, with an error as SaveCheckpoint if that cannot be.
  void RunBetweenSteps(std::function<void(const absl::StatusOr<PolicyVersion>&)> work);

  struct Status {
    PolicyVersion version;
    std::string state;        // "running", "replaying", "paused", "evaluating", "stopping", "done", "failed"
    absl::Time paused_since;  // while "paused"
    std::string last_checkpoint;
  };
  Status GetStatus() const;

 private:
  // Work between two steps; `over` is an error if no more of it can be done.
  using Task = std::function<void(const absl::Status& over)>;
  // What was asked of the loop between two steps.
  struct Requests {
    bool stop = false;
    bool fenced = false;
    bool paused = false;
    std::vector<Task> tasks;
    bool saves = false;  // one of them saves a checkpoint, which is evaluated
  };
  struct SavedCheckpoint {
    PolicyVersion version;
    uint64_t oldest_needed_record = 0;
  };

  void AddTask(Task task, bool saves);
  absl::Status Steps();
  // What is asked of the loop now; blocks while it is paused.
  Requests TakeRequests();
  // None: not yet, or the disk refuses it for now. OUT_OF_RANGE (reason DATA_ENDED): never.
  absl::StatusOr<std::optional<TrainingData::Batch>> NextBatch();
  // Takes a batch unless a pause or a stop was asked for: from here on the step is under way. Else as AwaitBatch.
  absl::StatusOr<TrainingData::Batch> BeginStep(absl::Time deadline);
  absl::Status Train(const TrainingData::Batch& batch);
  // Stages the present weights and hands them to the publisher, unless that was done.
  absl::Status EnsurePublished();
  bool CheckpointIsDue() const;
  bool PublishIsDue() const;
  void StartEvaluationIfDue();
  // Of the present version, unless it was evaluated, is not published, or another evaluation is being answered.
  void StartEvaluation();
  void StartEvaluation(const PolicyVersion& version);
  void CollectEvaluation(absl::Time deadline);
  void ReportEvaluation(const EvaluationResult& result);
  // The alarms that stand, after those that are new or over were logged.
  std::vector<std::string> StandingAlarms();
  absl::Status SaveIfDue();
  absl::StatusOr<std::string> Save();
  absl::StatusOr<std::string> WriteCheckpoint();
  absl::Status CheckWeights() const;
  // Of the present weights: as they travel if they were published, else as the policy has them.
  absl::StatusOr<uint64_t> WeightsDigest() const;
  absl::Status CheckNotFenced() const;
  void PruneOldCheckpoints();
  absl::StatusOr<Outcome> EndRun();
  void FinishEvaluation();
  // Until it is over, `deadline`, or somebody wants the run to stop.
  void AwaitEvaluation(absl::Time deadline);
  // True as soon as somebody wants the run to stop; false after `timeout`.
  bool AwaitStop(absl::Duration timeout);
  void ReportStep(const TrainingData::Batch& batch, StepReport report);
  void AddPhase(LoopPhase phase, double seconds);
  void SetState(const std::string& state);

  const Options options_;
  const Parts parts_;
  const absl::Time started_;

  // The step thread's own.
  PolicyVersion version_;
  WeightStager::Staged published_;  // version none: nothing yet
  PolicyVersion evaluated_;         // the last evaluation that was started
  bool evaluating_ = false;
  bool missed_evaluation_ = false;  // one was due while another was answered; made when that is over
  BestCheckpoint best_;
  LearningAlarms alarms_;
  std::vector<std::string> alarms_told_;
  int64_t saved_step_ = -1;
  std::deque<SavedCheckpoint> saved_here_;  // by this trainer, oldest first
  absl::Time last_step_end_;
  double waited_seconds_ = 0;     // for a batch, since then
  double accounted_seconds_ = 0;  // of all phases

  mutable Mutex mutex_;
  Requests requests_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::trainer
