#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <type_traits>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/trajectory.h"
#include "base/worker.h"
#include "rollouter/engine/engine_loop.h"
#include "services/rpc/request_ids.h"
#include "services/rpc/server_stream.h"
#include "services/rpc/unary.h"
#include "syncopate/v1/rollout.grpc.pb.h"

namespace syncopate::rollouterd {

// RolloutService over the engine. There is no actor here: RolloutMode and TrainerMode answer OK with acted=false and
// touch nothing, and checkpoints are refused before anything is opened. Methods do not block: what waits for the engine
// runs on a worker. Thread-safe.
class RolloutService final : public v1::RolloutService::CallbackService {
 public:
  struct Options {
    MemberId member;
    int64_t max_requests = 256;                    // Generate and GenerateStream under way; further ones are refused
    absl::Duration max_drain = absl::Minutes(10);  // a Drain without a deadline of its own waits this long
    absl::Duration max_sleep_wait = absl::Minutes(1);  // and a Sleep so long for a weight sync that is under way
    // A token is a small message, and an engine makes thousands a second: the longest answer may wait as a whole for a
    // client that stands still for a moment. Who does not read at all is cut by the stream's stalled_after.
    rpc::StreamOptions stream = {.max_queued_messages = 1 << 16, .max_queued_bytes = 4 << 20};
    // Called when work from the trainer is wanted (false) or not (true); must not block. May be empty.
    std::function<void(bool draining)> set_draining = nullptr;
    std::function<void(bool paused)> set_paused = nullptr;  // as set_draining, for Pause and Resume
    // As set_draining, for Sleep; and for WakeUp if it has weights to go on with.
    std::function<void(bool asleep)> set_asleep = nullptr;
    std::function<int64_t()> groups_submitted = nullptr;  // for GetStatus. May be empty
  };

  // Limits on what a client may name.
  static constexpr int kMaxStopTokens = 64;  // and stop sequences, and tokens of one
  static constexpr int kMaxTopLogProbs = 20;
  static constexpr int kMaxSamples = 1024;

  // `engine` must outlive the service.
  RolloutService(Options options, rollouter::EngineLoop* engine);
  // Waits for Pause, Resume, Abort, Drain, Sleep and WakeUp calls that are under way: stop the server and the engine first.
  ~RolloutService() override;

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context, const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override;
  grpc::ServerWriteReactor<v1::GenerateStreamResponse>* GenerateStream(
      grpc::CallbackServerContext* context, const v1::GenerateStreamRequest* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context, const v1::RolloutServicePauseRequest* request,
                                  v1::RolloutServicePauseResponse* response) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context, const v1::RolloutServiceResumeRequest* request,
                                   v1::RolloutServiceResumeResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Sleep(grpc::CallbackServerContext* context, const v1::SleepRequest* request,
                                  v1::SleepResponse* response) override;
  grpc::ServerUnaryReactor* WakeUp(grpc::CallbackServerContext* context, const v1::WakeUpRequest* request,
                                   v1::WakeUpResponse* response) override;
  grpc::ServerUnaryReactor* RolloutMode(grpc::CallbackServerContext* context,
                                        const v1::RolloutServiceRolloutModeRequest* request,
                                        v1::RolloutServiceRolloutModeResponse* response) override;
  grpc::ServerUnaryReactor* TrainerMode(grpc::CallbackServerContext* context,
                                        const v1::RolloutServiceTrainerModeRequest* request,
                                        v1::RolloutServiceTrainerModeResponse* response) override;
  grpc::ServerUnaryReactor* LoadCheckpoint(grpc::CallbackServerContext* context,
                                           const v1::LoadCheckpointRequest* request,
                                           v1::LoadCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* SaveCheckpoint(grpc::CallbackServerContext* context,
                                           const v1::RolloutServiceSaveCheckpointRequest* request,
                                           v1::RolloutServiceSaveCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::RolloutServiceGetStatusRequest* request,
                                      v1::RolloutServiceGetStatusResponse* response) override;

 private:
  class ActiveRequests;  // the names of requests under way
  class UnarySink;
  class StreamSink;
  // A name that nobody else has while a copy of it lives.
  using Name = std::shared_ptr<const std::string>;
  struct Admitted {
    Name name;
    rollouter::GenerationRequest request;
  };

  absl::StatusOr<Admitted> Admit(const v1::GenerateRequest& request, absl::Time deadline);
  // Ends what runs under an engine id, later; from any thread.
  void AbortLater(const std::string& engine_id);
  // Runs `work`, which fills its answer in, on `worker` and answers with its status, once per request_id.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* RunOnce(const char* method, const Request* request, Response* response, Worker& worker,
                                    std::type_identity_t<std::function<absl::Status(Response*)>> work);

  const Options options_;
  rollouter::EngineLoop* const engine_;
  const std::shared_ptr<ActiveRequests> active_;
  rpc::RequestIds request_ids_;
  Worker control_;  // Pause, Resume, Abort: a decode step each
  Worker drains_;   // Drain may take minutes, and must not hold up Resume
  Worker sleeps_;   // Sleep and WakeUp, in their order: they move gigabytes, and Sleep may wait for a weight sync
};

}  // namespace syncopate::rollouterd
