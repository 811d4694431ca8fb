#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/event_recorder.h"
#include "base/mutex.h"
#include "services/auth/transport_security.h"
#include "services/rpc/request_ids.h"
#include "services/synchronizer/sync_history.h"
#include "services/telemetry/sync_metrics.h"
#include "synchronizer/loop/control_loop.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::synchronizerd {

// The synchronizer: SynchronizerService over a ControlLoop of its own. Every call becomes an event on the loop, which
// answers it; no method blocks a gRPC thread. Thread-safe.
//
//   SYNCOPATE_ASSIGN_OR_RETURN(auto service, SynchronizerServiceImpl::Start(options));
//   SYNCOPATE_ASSIGN_OR_RETURN(auto server, Server::Start({.address = listen}, {service.get()}));
//   ...
//   service->EndStreams();  // so that the server need not wait for them
//   server->Stop(absl::Seconds(1));
class SynchronizerServiceImpl final : public v1::SynchronizerService::CallbackService,
                                      public synchronizer::ControlLoop::Observer {
 public:
  struct Options {
    synchronizer::ControlLoop::Options loop;
    // The server's own; null: a member is believed to have the role that its hello names.
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;
    telemetry::SyncMetrics* metrics = nullptr;  // borrowed; null: not counted
    EventRecorder* events = nullptr;            // borrowed; null: not recorded
    // Called once, on the loop's thread, when the state cannot be written any more: the process should end.
    std::function<void(const absl::Status&)> on_failed = nullptr;
  };

  // Reads the state and starts the loop. Errors of ControlLoop::Start.
  static absl::StatusOr<std::unique_ptr<SynchronizerServiceImpl>> Start(Options options);
  ~SynchronizerServiceImpl() override;  // call it after the server has stopped

  // The state that a main function polls while it waits for the end of the run.
  struct Progress {
    bool completed = false;  // the trainer has said that the run is complete
    int64_t members = 0;     // alive members
  };
  Progress progress() const;

  // Tells members and watchers to come back later and ends their streams.
  void EndStreams();

  grpc::ServerBidiReactor<v1::JoinRequest, v1::JoinResponse>* Join(grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* PublishVersion(grpc::CallbackServerContext* context,
                                           const v1::PublishVersionRequest* request,
                                           v1::PublishVersionResponse* response) override;
  grpc::ServerUnaryReactor* CompleteRun(grpc::CallbackServerContext* context, const v1::CompleteRunRequest* request,
                                        v1::CompleteRunResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::SynchronizerServiceGetStatusRequest* request,
                                      v1::SynchronizerServiceGetStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListMembers(grpc::CallbackServerContext* context, const v1::ListMembersRequest* request,
                                        v1::ListMembersResponse* response) override;
  grpc::ServerUnaryReactor* ListVersions(grpc::CallbackServerContext* context, const v1::ListVersionsRequest* request,
                                         v1::ListVersionsResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchSyncsResponse>* WatchSyncs(grpc::CallbackServerContext* context,
                                                               const v1::WatchSyncsRequest* request) override;
  grpc::ServerUnaryReactor* TriggerSync(grpc::CallbackServerContext* context, const v1::TriggerSyncRequest* request,
                                        v1::TriggerSyncResponse* response) override;
  grpc::ServerUnaryReactor* EvictMember(grpc::CallbackServerContext* context, const v1::EvictMemberRequest* request,
                                        v1::EvictMemberResponse* response) override;

  // Called on the loop's thread.
  void RecordSync(const synchronizer::SyncRecord& record) override;
  void RecordState(const synchronizer::ControlPlane& plane) override;
  void RecordFailure(const absl::Status& status) override;

 private:
  explicit SynchronizerServiceImpl(Options options);

  // Asks the loop: `ask` fills in the response and returns the call's status; the call is answered when the
  // consequences of `ask` have been carried out.
  using Ask = std::function<absl::Status(synchronizer::ControlPlane&, absl::Time)>;
  grpc::ServerUnaryReactor* Answer(Ask ask);
  // Answer for a call that changes something and has a request id.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* AnswerOnce(
      const char* method, const Request& request, Response* response,
      std::function<absl::Status(const Request&, Response*, synchronizer::ControlPlane&, absl::Time)> ask);

  const Options options_;
  const absl::Time started_;
  rpc::RequestIds request_ids_;
  std::atomic<int64_t> next_watcher_ = 1;
  mutable Mutex mutex_;
  Progress progress_ ABSL_GUARDED_BY(mutex_);
  SyncHistory history_;                              // used by the loop's thread only
  std::unique_ptr<synchronizer::ControlLoop> loop_;  // last: its thread uses the members above
};

}  // namespace syncopate::synchronizerd
