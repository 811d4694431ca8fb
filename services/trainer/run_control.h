#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "services/trainer/trainer_service.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/step_loop.h"
#include "trainer/step/policy.h"

namespace syncopate::trainerd {

// What TrainerService asks of a run; it answers before there is one, too. Thread-safe.
class RunControl final : public TrainerControl {
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

  v1::TrainerServiceGetStatusResponse GetStatus() const override;
  absl::Status Pause() override;
  absl::Status Resume() override;
  absl::Status Stop() override;
  void SaveCheckpoint(CheckpointDone done) override;
  void ExportModel(const v1::TrainerServiceExportModelRequest& request, ExportDone done) override;
  void RolloutMode(ModeDone done) override;
  void TrainerMode(ModeDone done) override;
  absl::StatusOr<std::shared_ptr<const ModelOffer>> GetModel() const override;

 private:
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
