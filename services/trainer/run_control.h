#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "services/trainer/model_offer.h"
#include "syncopate/v1/trainer.pb.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/step_loop.h"
#include "trainer/step/policy.h"

namespace syncopate::trainerd {

// What TrainerService asks of a run; it answers before there is one, too. Thread-safe.
class RunControl {
 public:
  struct Options {
    int64_t steps = 0;  // of the whole run
    std::string run_dir;
    bool has_model_folder = false;  // a run that began with model.path can export
  };
  // All borrowed; they must outlive this.
  struct Run {
    trainer::StepLoop* loop;
    trainer::TrainingData* data;
    const trainer::Policy* policy;  // used on the loop's thread alone
  };

  explicit RunControl(Options options);

  // From now on GetModel answers.
  void SetModel(std::shared_ptr<const ModelOffer> offer);
  // From now on everything does.
  void Start(const Run& run);
  // UNAVAILABLE (reason STARTING) before that.
  absl::StatusOr<Run> GetRun() const;

  v1::TrainerServiceGetStatusResponse GetStatus() const;
  // These three UNAVAILABLE (reason STARTING) before the run has begun.
  absl::Status Pause() { return CallLoop(&trainer::StepLoop::Pause); }
  absl::Status Resume() { return CallLoop(&trainer::StepLoop::Resume); }
  absl::Status Stop() { return CallLoop(&trainer::StepLoop::Stop); }
  // `done` gets the checkpoint's name once it is durable, from the step thread, between two steps. So with those below.
  void SaveCheckpoint(trainer::StepLoop::CheckpointDone done) {
    AskLoop(&trainer::StepLoop::SaveCheckpoint, std::move(done));
  }
  using ExportDone = std::function<void(const absl::StatusOr<v1::TrainerServiceExportModelResponse>&)>;
  void ExportModel(const v1::TrainerServiceExportModelRequest& request, ExportDone done);
  void RolloutMode(trainer::StepLoop::ModeDone done) { AskLoop(&trainer::StepLoop::EnterRolloutMode, std::move(done)); }
  void TrainerMode(trainer::StepLoop::ModeDone done) { AskLoop(&trainer::StepLoop::EnterTrainerMode, std::move(done)); }
  // UNAVAILABLE (reason STARTING) before SetModel.
  absl::StatusOr<std::shared_ptr<const ModelOffer>> GetModel() const;

 private:
  absl::Status CallLoop(void (trainer::StepLoop::*work)());
  template <typename Done>
  void AskLoop(void (trainer::StepLoop::*work)(Done), Done done) {
    const absl::StatusOr<Run> run = GetRun();
    if (!run.ok()) return done(run.status());
    (run->loop->*work)(std::move(done));
  }
  // On the step thread.
  absl::StatusOr<v1::TrainerServiceExportModelResponse> Export(const v1::TrainerServiceExportModelRequest& request,
                                                               const trainer::Policy& policy,
                                                               const PolicyVersion& version) const;

  const Options options_;
  mutable Mutex mutex_;
  std::shared_ptr<const ModelOffer> offer_ ABSL_GUARDED_BY(mutex_);  // null before the run has begun
  std::optional<Run> run_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::trainerd
