#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/data/prompts.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/alarm_log.h"
#include "trainer/loop/checkpoint_writer.h"
#include "trainer/loop/evaluation_rounds.h"
#include "trainer/loop/export_writer.h"
#include "trainer/loop/loop_control.h"
#include "trainer/loop/phase_times.h"
#include "trainer/loop/policy_publisher.h"
#include "trainer/loop/report_queue.h"
#include "trainer/loop/run_observer.h"
#include "trainer/staging/weight_stager.h"
#include "trainer/step/policy.h"
#include "trainer/turns/turn_desk.h"

namespace syncopate::trainer {

// The step thread of a trainer: takes batches, trains, stages and publishes versions, evaluates and saves, until the
// run is over. Run() is that thread; everything else is thread-safe.
//
// A version is staged beside the next step. Its digests are waited for by its publication and by the line of its step,
// which are another thread's (ReportQueue), and by the step thread where it begins a run, ends one, evaluates, exports,
// enters rollout mode or stages the next version. A checkpoint is copied without them and gets its name with them.
//
// A run may begin with supervised steps, which train the data's own answers: nothing is published before the last of
// them, so that rollouters have no work until then, and no answers are evaluated. The loss on held-out answers is
// measured by the policy itself.
//
// If rollouters share the policy's device, the loop takes turns with them (TurnDesk): the policy is in rollout mode but
// for the turns in which it publishes first and makes a step. A turn goes on until something is published: repeated and
// supervised steps before that are made in one. No turn begins while an evaluation is under way, as rollouters then must
// keep the version that it asks; one that they have all left for a newer version holds up nothing.
//
// After a restore the logged takes are repeated first and nothing is published meanwhile: rollouters that survived
// serve the bits at which the repetition ends, so they are relabelled instead of sent backwards.
class StepLoop {
 public:
  struct Options {
    // Prompts of Parts::evaluation_prompts whose own answers, which no step trains, give the held-out loss of
    // supervised steps: of every evaluate_every_steps-th step, the last supervised one and the last one. 0: none.
    int64_t held_out_prompts = 0;
    int64_t steps = 100;                                 // the run is complete after this one
    absl::Duration duration = absl::InfiniteDuration();  // or after this long
    int64_t supervised_steps = 0;  // TrainingData's: the first that is published is this one, or the first of all
    int64_t publish_every_steps = 1;
    int64_t evaluate_every_steps = 10;    // 0: only at the end
    int64_t checkpoint_every_steps = 50;  // 0: only at the end
    bool checkpoint_at_end = true;
    int keep_checkpoints = 2;
    // Each version is published before the step that made it counts as over: no batch can be had earlier.
    bool publishes_at_once = false;
    bool serve_complete = false;  // publish what is restored though nothing is left to do, for rollouters started anew
    absl::Duration last_evaluation_deadline = absl::Seconds(60);
    bool evaluate_only = false;  // `steps` is 0: what the loop begins with is evaluated, and the run is complete
  };
  // All borrowed; they must outlive the loop.
  struct Parts {
    Policy* policy;
    TrainingData* data;
    WeightStager* stager;  // of `policy`
    CheckpointStore* checkpoints;
    RunObserver* observer;
    const PromptSource* evaluation_prompts;
    // Tells the synchronizer of a staged version. Does not block. Called by a thread of the loop's.
    std::function<void(Publication)> publish;
    // The epoch of the newest trainer that has taken over the run directory, as it wrote it down before anything else.
    std::function<absl::StatusOr<int64_t>()> newest_epoch;
    // Returns true while weight syncs fail and are tried again, so that no rollouter serves the newest version yet.
    // Null: syncs never fail.
    std::function<bool()> syncs_fail = nullptr;
    // The other ranks that `policy` leads; null: there are none.
    RankSaves* ranks = nullptr;
    // Null: the run cannot export.
    ExportStore* exports = nullptr;
    // Null: the policy's device is its own.
    TurnDesk* turns = nullptr;
    // Called in each turn, on the loop's thread: with true once the device is the policy's, before its state comes, and
    // with false before the state leaves. Null: nobody measures.
    std::function<void(bool begins)> measure_turn = nullptr;
    // Keeps other processes from measuring what they take of the device, until the result is freed: staged weights that
    // leave it meanwhile would be part of what they measure. Returns null while one measures; the weights leave later
    // then. Does not block. Null: nobody measures.
    std::function<std::shared_ptr<const void>()> hold_device = nullptr;
  };
  enum class Outcome {
    kCompleted,  // all steps, the time, or the data
    kStopped,    // asked to
    kFenced,     // a newer trainer has taken over: nothing was saved
  };
  using CheckpointDone = std::function<void(const absl::StatusOr<std::string>&)>;
  using Status = LoopControl::Status;

  // `start` is the version that `policy` is at; its epoch is this trainer's.
  StepLoop(const Options& options, const Parts& parts, const PolicyVersion& start);

  // Blocks until the run is over. An error means that it cannot go on; the log and the last checkpoint are whole.
  // NON_FINITE: training has spoilt the weights; they are neither published nor saved.
  absl::StatusOr<Outcome> Run();

  // No step begins after this has returned; the one under way ends.
  void Pause() { control_.Pause(); }
  void Resume() { control_.Resume(); }
  // Ends the run after the step under way, with a checkpoint. Idempotent.
  void Stop() { control_.Stop(); }
  // Ends the run without a checkpoint, because a newer trainer has the right to write.
  void StopFenced() { control_.StopFenced(); }
  // Whether a stop was requested, before or after the run was over.
  bool stop_requested() const { return control_.stop_requested(); }
  // Saves the state between two steps while further steps are made. `done` is called when it is durable. CANCELLED
  // (reason RUN_OVER) if the run ends first.
  void SaveCheckpoint(CheckpointDone done);
  // Exports what is between two steps, while others are made; if an export is under way, between two later ones. `done`
  // is told when that is durable; NON_FINITE if the weights are spoilt, CANCELLED (reason RUN_OVER) if the run ends
  // first.
  void ExportModel(const ExportWriter::Request& request, ExportWriter::Done done);
  // Between two steps the policy enters that mode (Policy::EnterRolloutMode); no step begins in rollout mode, but the
  // run can be stopped, saved and exported. `done` is told once; errors as SaveCheckpoint and the policy's, which stays
  // in its mode then. FAILED_PRECONDITION (reason TAKES_TURNS) in a run that takes turns on its device.
  struct ModeChange {
    bool acted = false;  // it was in the other mode
    StateMoves moves;    // all 0 if not
  };
  using ModeDone = std::function<void(const absl::StatusOr<ModeChange>&)>;
  void EnterRolloutMode(ModeDone done);
  void EnterTrainerMode(ModeDone done);
  Status GetStatus() const { return control_.GetStatus(); }

 private:
  absl::Status MakeSteps();
  // The present requests to the loop; blocks while it is paused.
  LoopControl::Requests AwaitRequests();
  // Takes a batch, in a turn if the device is shared. nullopt: no batch is ready, the disk refuses the take for now, or a
  // stop has come before the turn. OUT_OF_RANGE (reason DATA_ENDED): there is none left.
  absl::StatusOr<std::optional<TrainingData::Batch>> NextBatch();
  // OK if a step can be made, unless a pause or a stop was asked for: from here on it is under way. Else as AwaitBatch.
  absl::Status AwaitStep(absl::Time deadline);
  absl::Status Train(const TrainingData::Batch& batch);
  // Does `work` in a turn of the policy on its device, if that is shared, and ends the turn if anything is published.
  // Error of reason TURN_UNWANTED: a stop has come before the turn.
  absl::Status InTurn(const std::function<absl::Status()>& work);
  // Unless it has begun. TURN_UNWANTED: as InTurn(); with `is_due` only if another trainer has taken over.
  absl::Status BeginTurn(bool is_due = false);
  absl::Status EndTurn();  // if anything is published
  absl::Status LeaveDevice();
  absl::StatusOr<bool> LetStagedLeave();
  // In a turn of the rollouters: looks for those that do not come back, and lets what is staged leave the device when all
  // of them have it.
  absl::Status LookAtTurn();
  // Makes the step, then does everything that reads the new weights. `begin`: the time at which Train() began.
  absl::Status MakeVersion(const TrainingData::Batch& batch, absl::Time begin, StepReport* report);
  void ReportStep(const TrainingData::Batch& batch, StepReport report);
  // OK if the policy's weights are finite, so that they may be exported. Waits for their staging.
  absl::Status AwaitFinite();
  void EnterMode(bool rollout, ModeDone done);
  absl::StatusOr<StepFigures> MakeStep(const TrainingData::Batch& batch);
  // The next step is a supervised one.
  bool IsSupervised() const { return version_.step < options_.supervised_steps; }
  // The present version is published before the next step, unless that repeats one.
  bool IsFirstPublicationDue() const { return !IsSupervised() && publisher_.published().IsNone(); }
  bool HeldOutIsDue() const;
  absl::StatusOr<HeldOutLoss> MeasureHeldOut();
  bool CheckpointIsDue() const;
  bool PublishIsDue() const;
  // Starts the evaluation of the present version, if that is published; waits for its staging.
  // PolicyPublisher::Await()'s errors.
  absl::Status StartEvaluation();
  absl::Status StartEvaluationIfDue();
  absl::Status SaveIfDue();
  absl::StatusOr<Outcome> EndRun();

  const Options options_;
  const Parts parts_;
  const absl::Time started_;
  LoopControl control_;

  // The step thread's own.
  PhaseTimes phases_;
  ReportQueue reports_;
  PolicyPublisher publisher_;
  CheckpointWriter checkpoints_;
  ExportWriter exports_;
  AlarmLog alarms_;
  EvaluationRounds evaluations_;
  std::vector<TrajectoryGroup> held_out_;  // made when it is measured first
  PolicyVersion version_;
  absl::Time last_step_end_;
  double waited_seconds_ = 0;  // for a batch, since then
  bool rollout_mode_ = false;
  bool in_turn_ = false;
  bool take_refused_ = false;  // by the disk, the last time
  bool stays_staged_ = false;  // as was logged: the host has no room for what is staged on the device
  // What the turn of the present step took; all 0 if the device is not shared.
  double turn_drain_seconds_ = 0;
  StateMoves turn_load_, turn_offload_;
};

}  // namespace syncopate::trainer
