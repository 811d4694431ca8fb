#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/rpc/request_ids.h"
#include "services/trainer/model_offer.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "trainer/loop/step_loop.h"
#include "trainer/record/run_reporter.h"

namespace syncopate::trainerd {

// What TrainerService needs of the daemon behind it. Thread-safe; nothing blocks.
class TrainerControl {
 public:
  virtual ~TrainerControl() = default;
  virtual v1::TrainerServiceGetStatusResponse GetStatus() const = 0;
  // UNAVAILABLE (reason STARTING) before the run has begun.
  virtual absl::Status Pause() = 0;
  virtual absl::Status Resume() = 0;
  virtual absl::Status Stop() = 0;
  // `done` gets the checkpoint's name once it is durable, from the step thread, between two steps.
  using CheckpointDone = std::function<void(const absl::StatusOr<std::string>&)>;
  virtual void SaveCheckpoint(CheckpointDone done) = 0;
  // The same for an export.
  using ExportDone = std::function<void(const absl::StatusOr<v1::TrainerServiceExportModelResponse>&)>;
  virtual void ExportModel(const v1::TrainerServiceExportModelRequest& request, ExportDone done) = 0;
  // As StepLoop's, from the step thread, between two steps.
  using ModeDone = trainer::StepLoop::ModeDone;
  virtual void RolloutMode(ModeDone done) = 0;
  virtual void TrainerMode(ModeDone done) = 0;
  // UNAVAILABLE (reason STARTING) before the run has begun.
  virtual absl::StatusOr<std::shared_ptr<const ModelOffer>> GetModel() const = 0;
};

// TrainerService over a TrainerControl. Mutating calls are idempotent by request_id, those of modes by themselves.
class TrainerServiceImpl final : public v1::TrainerService::CallbackService {
 public:
  // Both must outlive the server that serves this.
  TrainerServiceImpl(TrainerControl* control, trainer::RunReporter* reporter)
      : control_(control), reporter_(reporter) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::TrainerServiceGetStatusRequest* request,
                                      v1::TrainerServiceGetStatusResponse* response) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context, const v1::TrainerServicePauseRequest* request,
                                  v1::TrainerServicePauseResponse* response) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context, const v1::TrainerServiceResumeRequest* request,
                                   v1::TrainerServiceResumeResponse* response) override;
  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext* context, const v1::StopRequest* request,
                                 v1::StopResponse* response) override;
  grpc::ServerUnaryReactor* SaveCheckpoint(grpc::CallbackServerContext* context,
                                           const v1::TrainerServiceSaveCheckpointRequest* request,
                                           v1::TrainerServiceSaveCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* ExportModel(grpc::CallbackServerContext* context,
                                        const v1::TrainerServiceExportModelRequest* request,
                                        v1::TrainerServiceExportModelResponse* response) override;
  grpc::ServerUnaryReactor* RolloutMode(grpc::CallbackServerContext* context,
                                        const v1::TrainerServiceRolloutModeRequest* request,
                                        v1::TrainerServiceRolloutModeResponse* response) override;
  grpc::ServerUnaryReactor* TrainerMode(grpc::CallbackServerContext* context,
                                        const v1::TrainerServiceTrainerModeRequest* request,
                                        v1::TrainerServiceTrainerModeResponse* response) override;
  grpc::ServerWriteReactor<v1::GetModelResponse>* GetModel(grpc::CallbackServerContext* context,
                                                           const v1::GetModelRequest* request) override;
  grpc::ServerWriteReactor<v1::WatchStepsResponse>* WatchSteps(grpc::CallbackServerContext* context,
                                                               const v1::WatchStepsRequest* request) override;

 private:
  // Answers a mutating call whose work is done at once.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Mutate(const char* method, const Request* request, Response* response,
                                   absl::Status (TrainerControl::*work)());

  TrainerControl* const control_;
  trainer::RunReporter* const reporter_;
  rpc::RequestIds request_ids_;
};

}  // namespace syncopate::trainerd
