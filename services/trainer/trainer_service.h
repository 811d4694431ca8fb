#pragma once

#include "absl/status/status.h"
#include "services/rpc/request_ids.h"
#include "services/trainer/run_control.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "trainer/record/run_reporter.h"

namespace syncopate::trainerd {

// TrainerService over a RunControl. Mutating calls are idempotent by request_id; the mode calls are idempotent without
// one.
class TrainerServiceImpl final : public v1::TrainerService::CallbackService {
 public:
  // Both must outlive the server that serves this.
  TrainerServiceImpl(RunControl* control, trainer::RunReporter* reporter) : control_(control), reporter_(reporter) {}

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
                                   absl::Status (RunControl::*work)());

  RunControl* const control_;
  trainer::RunReporter* const reporter_;
  rpc::RequestIds request_ids_;
};

}  // namespace syncopate::trainerd
