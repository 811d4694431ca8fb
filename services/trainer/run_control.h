#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/identity.h"
#include "base/mutex.h"
#include "services/trainer/model_offer.h"
#include "syncopate/v1/trainer.pb.h"
#include "trainer/data/sizing.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/step_loop.h"
#include "trainer/turns/turn_desk.h"

namespace syncopate::trainerd {

// The part of a run that TrainerService uses; it can be called before there is a run. Thread-safe.
class RunControl {
 public:
  struct Options {
    int64_t steps = 0;             // of the whole run
    bool trains_adapters = false;  // exports are of adapters alone, in float32
  };
  // All are borrowed and must outlive this object.
  struct Run {
    trainer::StepLoop* loop;
    trainer::TrainingData* data;
  };

  explicit RunControl(Options options);

  // From now on GetModel() succeeds. `turns`: what the trainer takes turns by with rollouters on its devices,
  // `cards`; null: it has devices of its own.
  void SetModel(std::shared_ptr<const ModelOffer> offer, trainer::TurnDesk* turns = nullptr,
                std::set<std::string> cards = {});
  // From now on all methods succeed.
  void Start(const Run& run);
  // UNAVAILABLE (reason STARTING) before Start().
  absl::StatusOr<Run> GetRun() const;

  // What GetStatus() tells of the run's size from now on: advice, or why there is none yet.
  void SetSizing(const absl::StatusOr<trainer::SizingAdvice>& advice);
  v1::TrainerServiceGetStatusResponse GetStatus() const;
  // Pause, Resume and Stop: UNAVAILABLE (reason STARTING) before Start().
  absl::Status Pause() { return CallLoop(&trainer::StepLoop::Pause); }
  absl::Status Resume() { return CallLoop(&trainer::StepLoop::Resume); }
  absl::Status Stop() { return CallLoop(&trainer::StepLoop::Stop); }
  // The methods below call `done` on a thread of the loop's. This one gives it the name of the checkpoint once that is
  // durable.
  void SaveCheckpoint(trainer::StepLoop::CheckpointDone done) {
    AskLoop(&trainer::StepLoop::SaveCheckpoint, std::move(done));
  }
  using ExportDone = std::function<void(const absl::StatusOr<v1::TrainerServiceExportModelResponse>&)>;
  void ExportModel(const v1::TrainerServiceExportModelRequest& request, ExportDone done);
  void RolloutMode(trainer::StepLoop::ModeDone done) { AskLoop(&trainer::StepLoop::EnterRolloutMode, std::move(done)); }
  void TrainerMode(trainer::StepLoop::ModeDone done) { AskLoop(&trainer::StepLoop::EnterTrainerMode, std::move(done)); }
  // UNAVAILABLE (reason STARTING) before SetModel().
  absl::StatusOr<std::shared_ptr<const ModelOffer>> GetModel() const;
  // Calls `answer` once: now, or if the trainer has its turn on one of `cards`, when that is over. The engine that the
  // rollouter `who` makes of the answer takes memory of `cards`. Call the result when the rollouter no longer waits for
  // the answer, or, on a shared card, when it cannot be reached any more.
  std::function<void()> CallInRolloutersTurn(const MemberId& who, const std::set<std::string>& cards,
                                             std::function<void()> answer);
  // Whether the trainer takes turns on one of `cards`, so that a rollouter there keeps its call open until it has
  // connected.
  bool TakesTurnsOn(const std::set<std::string>& cards) const;

 private:
  bool SharesLocked(const std::set<std::string>& cards) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CallLoop(void (trainer::StepLoop::*work)());
  template <typename Done>
  void AskLoop(void (trainer::StepLoop::*work)(Done), Done done) {
    const absl::StatusOr<Run> run = GetRun();
    if (!run.ok()) return done(run.status());
    (run->loop->*work)(std::move(done));
  }
  const Options options_;
  mutable Mutex mutex_;
  std::shared_ptr<const ModelOffer> offer_ ABSL_GUARDED_BY(mutex_);  // null before the run has begun
  trainer::TurnDesk* turns_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::set<std::string> cards_ ABSL_GUARDED_BY(mutex_);
  std::optional<Run> run_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Sizing> sizing_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::trainerd
