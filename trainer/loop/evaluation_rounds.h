#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/policy_version.h"
#include "trainer/data/prompts.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/alarm_log.h"
#include "trainer/loop/checkpoint_writer.h"
#include "trainer/loop/loop_control.h"
#include "trainer/loop/phase_times.h"
#include "trainer/loop/run_observer.h"

namespace syncopate::trainer {

// The evaluations of a run, one at a time, answered while training goes on. Called by the step thread alone.
//
//   none --Start--> under way --answered--> reported, none
//                       |-------no rollouter serves its version any more--> lost, none
//
// An evaluation that is due while another is under way is made when that one is over, and a lost evaluation is made up
// for: one evaluation does both, of the newest version that rollouters serve then. An evaluation that is due and not
// made for its own version is lost: it is counted, whatever is made in its place.
class EvaluationRounds {
 public:
  // All borrowed; they must outlive this.
  struct Parts {
    TrainingData* data;
    const PromptSource* prompts;
    LoopControl* control;
    CheckpointWriter* checkpoints;
    AlarmLog* alarms;
    RunObserver* observer;
    PhaseTimes* phases;
    // Returns true while weight syncs fail and are tried again, so that no rollouter serves the newest version yet.
    // Null: syncs never fail.
    std::function<bool()> syncs_fail;
  };
  explicit EvaluationRounds(Parts parts) : parts_(std::move(parts)) {}

  // Starts the evaluation of `version`, which is published; does nothing if it was evaluated already.
  void Start(const PolicyVersion& version);
  bool under_way() const { return under_way_; }
  // One is under way, and rollouters serve its version or may come to: nobody serves a newer one instead.
  bool IsAnswerable() const {
    return under_way_ && (parts_.data->EvaluationIsServed() || parts_.data->NewestServed() <= evaluated_);
  }
  const PolicyVersion& last_started() const { return evaluated_; }  // none: there was none

  // Reports the evaluation under way if it ends by `deadline`, then starts one that was postponed, if any.
  void Collect(absl::Time deadline);
  // Call at the end of the run: evaluates `version` if it is published, and waits for the result. Waits `patience` for
  // each evaluation, longer while syncs fail, and no longer once a stop of the run is requested.
  void Finish(const PolicyVersion& version, const PolicyVersion& published, absl::Duration patience);

 private:
  void Begin(const PolicyVersion& version, bool is_due);
  void MakeUp();
  void Lose(const PolicyVersion& version, const std::string& why);
  void LoseMissed();
  void Report(EvaluationResult result);
  EvaluationReport::Sample ShownSample(const EvaluationResult::Sample& sample) const;
  void AwaitEnd(absl::Time deadline);

  const Parts parts_;
  PolicyVersion evaluated_;  // the last one that was started
  bool under_way_ = false;
  bool is_due_ = false;                  // the one under way is not made in another's place
  bool owed_ = false;                    // one is to be made as soon as a version is served that was not evaluated
  std::optional<PolicyVersion> missed_;  // one was due while another was answered
  bool finishing_ = false;
};

}  // namespace syncopate::trainer
