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

// RolloutService over the engine. A rollouter has no actor: RolloutMode and TrainerMode answer OK with acted=false and
// change nothing, and checkpoint calls are refused before any file is opened. No method blocks: work that waits for the
// engine runs on a worker. Thread-safe.
class RolloutService final : public v1::RolloutService::CallbackService {
 public:
  struct Options {
    MemberId member;
    int64_t max_requests = 256;                        // of Generate and GenerateStream; further ones are refused
    absl::Duration max_drain = absl::Minutes(10);      // a Drain without a deadline of its own waits this long
    absl::Duration max_sleep_wait = absl::Minutes(1);  // the longest that a Sleep waits for a running sync
    // A token is a small message, and an engine makes thousands a second. The queue has room for a whole long answer,
    // so that a client may pause for a moment. A client that does not read at all is cut off by the stream's
    // stalled_after.
    rpc::StreamOptions stream = {.max_queued_messages = 1 << 16, .max_queued_bytes = 4 << 20};
    // Called with true when no more work from the trainer is wanted, with false when it is wanted again; must not
    // block. May be empty.
    std::function<void(bool draining)> set_draining = nullptr;
    std::function<void(bool paused)> set_paused = nullptr;  // like set_draining, for Pause and Resume
    // Like set_draining, for Sleep; and for WakeUp if the engine still has weights to serve.
    std::function<void(bool asleep)> set_asleep = nullptr;
    std::function<int64_t()> groups_submitted = nullptr;  // for GetStatus. May be empty
  };

  // Limits on the sizes in a client's request.
  static constexpr int kMaxStopTokens = 64;  // also of stop sequences, and of tokens in one
  static constexpr int kMaxTopLogProbs = 20;
  static constexpr int kMaxSamples = 1024;

  // `engine` must outlive the service.
  RolloutService(Options options, rollouter::EngineLoop* engine);
  // Waits for running Pause, Resume, Abort, Drain, Sleep and WakeUp calls: stop the server and the engine first.
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
  class ActiveRequests;  // the names of running requests
  class UnarySink;
  class StreamSink;
  // A name that no other request has while a copy of this pointer exists.
  using Name = std::shared_ptr<const std::string>;
  struct Admitted {
    Name name;
    rollouter::GenerationRequest request;
  };

  absl::StatusOr<Admitted> Admit(const v1::GenerateRequest& request, absl::Time deadline);
  // Ends the request with this engine id, later; may be called from any thread.
  void AbortLater(const std::string& engine_id);
  // Runs `work`, which fills in its response, on `worker` and answers with its status, once per request_id.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* RunOnce(const char* method, const Request* request, Response* response, Worker& worker,
                                    std::type_identity_t<std::function<absl::Status(Response*)>> work);

  const Options options_;
  rollouter::EngineLoop* const engine_;
  const std::shared_ptr<ActiveRequests> active_;
  rpc::RequestIds request_ids_;
  Worker control_;  // Pause, Resume, Abort: each takes one decode step
  Worker drains_;   // Drain may take minutes, and must not delay Resume
  Worker sleeps_;   // Sleep and WakeUp, in order: they move gigabytes, and Sleep may wait for a weight sync
};

}  // namespace syncopate::rollouterd
