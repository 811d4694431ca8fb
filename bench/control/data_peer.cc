#include "bench/control/data_peer.h"

#include <prometheus/registry.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/status.h"
#include "bench/process/command_lines.h"
#include "services/auth/audit.h"
#include "services/auth/transport_security.h"
#include "services/rpc/server.h"
#include "services/telemetry/grpc_metrics.h"
#include "services/trainer/data_codec.h"
#include "services/trainer/trajectory_service.h"
#include "trainer/data/tasks.h"
#include "trainer/data/training_data.h"

namespace syncopate::bench {
namespace {

constexpr int64_t kNoBound = int64_t{1} << 30;  // steps of staleness: the rollouters' version never becomes too old
constexpr int32_t kVocabulary = 151936;
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);
constexpr int64_t kPruneEvery = 32;  // steps

trainer::TrainingData::Options DataOptions(const DataPeerOptions& options) {
  trainer::TrainingData::Options data;
  data.ledger.gate = {options.batch_groups, static_cast<double>(kNoBound), kNoBound};
  data.ledger.vocab_size = kVocabulary;
  data.ledger.samples = options.samples;
  data.ledger.sampling.max_new_tokens = kBenchMaxNewTokens;
  data.log.segments.folder = options.folder;
  data.evaluation.sampling.temperature = 0;
  return data;
}

// The work of a trainer's step thread with its batches, without the training.
class StepThread {
 public:
  explicit StepThread(trainer::TrainingData* data) : data_(data), thread_([this] { Run(); }) {}
  ~StepThread() {
    stopping_ = true;
    thread_.join();
  }

 private:
  void Run() {
    for (int64_t steps = 1; !stopping_;) {
      if (!data_->AwaitBatch(Clock::Real()->Now() + kLookAgain).ok()) continue;
      absl::StatusOr<trainer::TrainingData::Batch> batch = data_->TakeBatch();
      if (!batch.ok()) {
        SYNCOPATE_LOG(kError, "no batch: %s", batch.status().ToString());
        continue;
      }
      data_->FinishStep();
      if (steps++ % kPruneEvery != 0) continue;
      if (auto snapshot = data_->Snapshot(); snapshot.ok()) data_->PruneLog(snapshot->oldest_needed_record);
    }
  }

  trainer::TrainingData* const data_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace

absl::Status RunDataPeer(const DataPeerOptions& options, EventSink* sink) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto prompts, trainer::MakeTask({}));
  SYNCOPATE_ASSIGN_OR_RETURN(auto data, trainer::TrainingData::Open(DataOptions(options),
                                                                    {.files = FileSystem::Real(),
                                                                     .codec = &trainerd::ProtoRecordCodec(),
                                                                     .clock = Clock::Real(),
                                                                     .prompts = prompts.get(),
                                                                     .evaluation_prompts = prompts.get()},
                                                                    {kBenchVersion, kBenchRunId, ""}));
  data->RecordPublished(kBenchVersion);
  trainerd::TrajectoryServiceImpl service(data.get());
  prometheus::Registry registry;
  telemetry::GrpcServerMetrics metrics(registry, {v1::TrajectoryService::service_full_name()});
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto security,
      auth::TransportSecurity::Load(
          {.role = "trainer", .tls_cert = options.tls.cert, .tls_key = options.tls.key, .tls_ca = options.tls.ca}));
  rpc::Server::Options server_options;
  server_options.security = security;
  server_options.address = options.listen;
  server_options.max_receive_bytes = int64_t{64} << 20;  // as in the daemons
  server_options.interceptors = {metrics.InterceptorFactory(), auth::AuditInterceptors(security)};
  SYNCOPATE_ASSIGN_OR_RETURN(auto server, rpc::Server::Start(server_options, {&service}));
  absl::Status status;
  {
    StepThread steps(data.get());
    sink->Write("ready", {{"address", server->address()}});
    status = RunCommands({});
  }
  data->Stop();
  server->Stop(absl::Seconds(1));
  return status;
}

}  // namespace syncopate::bench
