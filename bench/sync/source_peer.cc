#include <algorithm>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/uuid.h"
#include "bench/process/json_fields.h"
#include "bench/sync/bench_peer.h"
#include "bench/sync/peer_commands.h"
#include "bench/sync/peer_common.h"
#include "services/member/grpc_transport.h"
#include "services/member/member_client.h"
#include "services/member/weight_service.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "services/wire/codec.h"
#include "synchronizer/transport/weight_source.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;

constexpr absl::Duration kCallLimit = absl::Seconds(5);
constexpr absl::Duration kPublishLimit = absl::Seconds(60);
constexpr absl::Duration kBackoff = absl::Milliseconds(100);

MemberId SourceId(const PeerOptions& options, const MemberSecret& secret) {
  return {synchronizer::kTrainerRole, "trainer", options.rank, options.world, secret.incarnation()};
}

// A trainer rank that only publishes.
class SourcePeer {
 public:
  SourcePeer(const PeerOptions& options, PeerPlan plan, EventSink* sink)
      : options_(options),
        plan_(std::move(plan)),
        sink_(sink),
        secret_(MemberSecret::Draw()),
        id_(SourceId(options, secret_)) {}
  ~SourcePeer() {
    if (client_ != nullptr) client_->Stop(kGrace);
    if (server_ != nullptr) server_->Stop(absl::ZeroDuration());
  }

  absl::Status Join(PeerDevice* device);
  absl::Status Run(PeerDevice* device);

 private:
  absl::Status Stage(int64_t step);
  // Rank 0, for all ranks.
  absl::Status Publish(int64_t step, const std::vector<uint64_t>& digests, double stage_seconds);
  absl::Status PublishVersion(const v1::PublishVersionRequest& request);

  const PeerOptions options_;
  const PeerPlan plan_;
  EventSink* const sink_;
  const MemberSecret secret_;
  const MemberId id_;
  std::unique_ptr<SourceWeights> weights_;
  std::unique_ptr<member::WeightServiceImpl> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<member::GrpcSource> grpc_;
  std::unique_ptr<synchronizer::WeightSource> source_;
  std::unique_ptr<member::SourceParticipant> participant_;
  std::unique_ptr<WatchedParticipant> watched_;
  std::unique_ptr<v1::SynchronizerService::Stub> stub_;
  std::unique_ptr<member::MemberClient> client_;
  int64_t epoch_ = 0;
};

absl::Status SourcePeer::Join(PeerDevice* device) {
  SYNCOPATE_ASSIGN_OR_RETURN(weights_, device->MakeSource(options_, plan_));
  service_ = std::make_unique<member::WeightServiceImpl>(weights_->store());
  // The default address is a free port of loopback: all processes of a benchmark are on one host.
  SYNCOPATE_ASSIGN_OR_RETURN(server_, rpc::Server::Start({}, {service_.get()}));
  grpc_ = std::make_unique<member::GrpcSource>(server_->address());
  std::vector<synchronizer::SourceTransport*> transports = weights_->transports();
  transports.push_back(grpc_.get());
  transports = Offered(options_, std::move(transports));
  source_ = std::make_unique<synchronizer::WeightSource>(
      weights_->store(), transports,
      synchronizer::WeightSource::Options{options_.source_layout, options_.receiver_layout});
  participant_ = std::make_unique<member::SourceParticipant>(source_.get());
  watched_ = std::make_unique<WatchedParticipant>(participant_.get(), sink_);
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(options_.synchronizer));
  stub_ = v1::SynchronizerService::NewStub(channel);

  member::MemberClient::Options client;
  client.synchronizer_address = options_.synchronizer;
  client.hello.member = id_;
  client.secret = secret_;
  client.hello.address = server_->address();
  client.hello.manifest = std::make_shared<Manifest>(plan_.manifest);
  client.hello.facts = device->facts();
  client.hello.layout = options_.source_layout;
  client.hello.destination_layout = options_.receiver_layout;
  client.hello.start = options_.start;
  for (const auto* transport : transports) client.hello.transports.push_back(transport->name());
  client.on_refused = [sink = sink_](const absl::Status& status) {
    sink->Write("failed", {{"error", std::string(status.message())}});
  };
  SYNCOPATE_ASSIGN_OR_RETURN(client_, member::MemberClient::Start(std::move(client), watched_.get()));
  SYNCOPATE_ASSIGN_OR_RETURN(synchronizer::Welcome welcome, client_->WaitForWelcome(kWelcomeLimit));
  epoch_ = welcome.epoch;
  return absl::OkStatus();
}

absl::Status SourcePeer::Run(PeerDevice* device) {
  PeerCommands commands = CommonCommands(device, watched_.get(), sink_);
  commands["fill"] = [this](const json& arguments) -> absl::Status {
    SYNCOPATE_RETURN_IF_ERROR(weights_->Fill(IntegerIn(arguments, "step")));
    sink_->Write("answer");
    return absl::OkStatus();
  };
  commands["stage"] = [this](const json& arguments) { return Stage(IntegerIn(arguments, "step")); };
  commands["publish"] = [this](const json& arguments) -> absl::Status {
    std::vector<uint64_t> digests;
    for (const json& digest : arguments.at("digests")) digests.push_back(digest.get<uint64_t>());
    return Publish(IntegerIn(arguments, "step"), digests, NumberIn(arguments, "stage_seconds"));
  };
  commands["report"] = [this, device](const json&) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t bytes, device->MemoryUsed());
    sink_->Write("answer", {{"memory_bytes", bytes}});
    return absl::OkStatus();
  };
  sink_->Write("ready");
  return RunCommands(commands);
}

absl::Status SourcePeer::Stage(int64_t step) {
  // The machine's clock, which receivers also use to report when they serve.
  const double begun = MachineSeconds();
  SYNCOPATE_ASSIGN_OR_RETURN(SourceWeights::Staged staged, weights_->Stage({epoch_, step}));
  sink_->Write("staged",
               {{"step", step}, {"begun", begun}, {"stage_seconds", staged.seconds}, {"digests", staged.digests}});
  return absl::OkStatus();
}

absl::Status SourcePeer::Publish(int64_t step, const std::vector<uint64_t>& digests, double stage_seconds) {
  v1::PublishVersionRequest request;
  // One id for all repetitions below, by which the synchronizer recognizes the publication.
  request.set_request_id(RandomUuid());
  *request.mutable_member() = wire::ToProto(id_);
  request.set_secret(secret_.Reveal());
  *request.mutable_version() = wire::ToProto(PolicyVersion{epoch_, step});
  request.mutable_bucket_digests()->Assign(digests.begin(), digests.end());
  request.set_manifest_fingerprint(plan_.manifest.fingerprint());
  request.set_stage_seconds(stage_seconds);
  return PublishVersion(request);
}

// Repeats the call while the synchronizer is away.
absl::Status SourcePeer::PublishVersion(const v1::PublishVersionRequest& request) {
  const absl::Time deadline = Clock::Real()->Now() + kPublishLimit;
  while (true) {
    absl::Status status =
        rpc::CallUnary(stub_.get(), &v1::SynchronizerService::Stub::PublishVersion, request, kCallLimit).status();
    const bool away = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!away || Clock::Real()->Now() > deadline) return status;
    SYNCOPATE_LOG(kWarning, "not published yet: %s", status.ToString());
    SYNCOPATE_RETURN_IF_ERROR(client_->WaitForWelcome(kWelcomeLimit).status());
    // A wait of kBackoff: the synchronizer answers, but may still be reading its state.
    Mutex mutex;
    MutexLock lock(&mutex);
    const bool never = false;
    mutex.AwaitWithTimeout(Condition(&never), kBackoff);
  }
}

}  // namespace

absl::Status RunSourcePeer(const PeerOptions& options, PeerDevice* device, EventSink* sink) {
  SYNCOPATE_ASSIGN_OR_RETURN(PeerPlan plan, MakePeerPlan(options));
  SourcePeer peer(options, std::move(plan), sink);
  SYNCOPATE_RETURN_IF_ERROR(peer.Join(device));
  return peer.Run(device);
}

}  // namespace syncopate::bench
